"""`python -m dapo_ref.preflight` under the launcher."""

import subprocess
import sys
from pathlib import Path

from tests.support.helpers import ROOT


def test_two_processes_end_with_a_table_and_the_failed_check(tmp_path: Path) -> None:
    """All is well but for the data: exit code 1, and the other checks are made."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(ROOT / "configs/accelerate/zero3.yaml"), "--num_processes", "2"),
        *("--main_process_port", "0", "-m", "dapo_ref.preflight", "--config", "configs/tiny_cpu.yaml"),
        *("--data", "nowhere.jsonl", "--output_dir", str(tmp_path / "run")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == 1, done.stderr[-4000:]
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    found = {words[0]: words[1] for words in lines if len(words) == 2}
    assert found["data"].startswith("failed")
    assert "nowhere.jsonl" in found["data"]
    for name in ("versions", "collectives", "shared", "lock", "disk", "engine", "precision", "update"):
        assert "ok" in found[name], found[name]
    assert found["packing"].startswith("ok")
    assert found["sampling"].startswith("ok")
    assert found["decoding"].startswith("not here")
    assert found["failed:"] == "data"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
