"""A real browser for the report's page: Chromium without a window, driven by a script put into the page.

No package is needed for it. Where there is no Chromium the tests that use it are skipped with a line.
"""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: the report's page is not opened")


def run_in_page(page: Path, script: str, width: int = 1280, fragment: str = "") -> list[str]:
    """Opens a copy of a page, runs a script in it, and returns what the script handed to `say`.

    An error in the page, also in its own scripts, is the last thing said.
    """
    before = (
        "<script>const said = []; const say = (value) => said.push(String(value));"
        "addEventListener('error', (e) => say('error: ' + e.message));"
        "addEventListener('securitypolicyviolation', (e) => say('refused: ' + e.blockedURI));</script>"
    )
    after = (
        f"<script>try {{ {script} }} catch (e) {{ say('error: ' + e.message + e.stack); }}"
        "for (const text of said) { const p = document.createElement('p'); p.className = 'said';"
        "p.textContent = text; document.body.append(p); }</script></body>"
    )
    text = page.read_text(encoding="utf-8").replace("<style>", before + "<style>", 1)
    copy = page.with_name("opened.html")
    copy.write_text(text.replace("</body>", after), encoding="utf-8")
    profile = page.with_name("profile")
    command = [
        *(str(CHROMIUM), *SWITCHES, f"--user-data-dir={profile}", f"--window-size={width},900"),
        *("--virtual-time-budget=3000", "--dump-dom", f"file://{copy}{fragment}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    shutil.rmtree(profile, ignore_errors=True)
    found = re.findall(r'<p class="said">(.*?)</p>', done.stdout, flags=re.DOTALL)
    assert done.returncode == 0, done.stderr[-2000:]
    return [html.unescape(item) for item in found]
