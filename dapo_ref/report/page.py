"""The page: template, style, scripts and data in one file that loads nothing from elsewhere."""

import html
import json
from importlib import resources
from typing import Any

SCRIPTS = ("core.js", "charts.js", "rollouts.js", "page.js")


def page(data: dict[str, Any], rollouts: list[dict[str, Any]], watch_s: float = 0) -> str:
    """The HTML of a report.

    Args:
        data, rollouts: from `data.page_data`.
        watch_s: the page loads itself anew after so many seconds; 0 for never.
    """
    folder = resources.files("dapo_ref.report") / "static"
    parts = {
        "TITLE": html.escape(" · ".join(run["name"] for run in data["runs"])),
        "STYLE": (folder / "page.css").read_text(encoding="utf-8"),
        "DATA": embedded({**data, "watch_s": watch_s}),
        "ROLLOUTS": embedded(rollouts),
        "SCRIPT": "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    text = (folder / "page.html").read_text(encoding="utf-8")
    before, *pieces = text.split("{{")
    filled = [before]
    for piece in pieces:
        name, rest = piece.split("}}", 1)
        filled += [parts[name], rest]
    return "".join(filled)


def embedded(value: Any) -> str:
    """JSON that can stand inside `<script>`: no text in it ends the element or begins a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.encode("utf-8", errors="replace").decode("utf-8")  # half a surrogate pair is no character
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
