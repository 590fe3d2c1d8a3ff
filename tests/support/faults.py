"""Runs to be disturbed: small ones of the embedded model, started through `fork_server.py`, and what it means
that one is the run that was not disturbed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dapo_ref.run.files import read_metrics
from tests.support.fork_server import ANSWER
from tests.support.helpers import ROOT

STEPS = 4
OPTIONS = [
    *("--config", str(ROOT / "configs/tiny_cpu.yaml"), "--rollout_steps", str(STEPS)),
    *("--data", "tiny:train:8"),  # one or two steps an epoch: its end is passed before and after each resume
    *("--prompts_per_step", "2", "--group_size", "4", "--responses_per_update", "4"),
    *("--max_response_length", "28", "--overlong_cache_length", "8", "--tokens_per_microbatch", "32"),
    *("--checkpoint_every", "2", "--keep_checkpoints", "2", "--process_group_timeout_s", "200"),
]


def fault(event: str, count: int, action: str, *ranks: int, **place: int) -> dict[str, Any]:
    """On these ranks (0 if none is named), before call number `count` of an event.

    The calls are counted from the beginning of the run, of the `step` or of the `update` of that step that
    is named; see `fork_server.py`."""
    return {"event": event, "count": count, "action": action, "ranks": list(ranks or (0,)), **place}


@dataclass
class Ended:
    """A run that has ended: exit code and output of each rank."""

    codes: list[int]
    logs: list[str]


class Runs:
    """Runs in folders of `work`, one at a time."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )

    def close(self) -> None:
        """Ends the server."""
        self.server.communicate()

    def run(
        self,
        folder: Path,
        world: int,
        *options: str,
        faults: Sequence[dict[str, Any]] = (),
        left_behind: Sequence[int] = (),
        **order: Any,
    ) -> Ended:
        """Runs to the end, whatever it is.

        Args:
            folder: of the run.
            world: processes.
            options: beside `OPTIONS`; the later one counts.
            faults: made with `fault`.
            left_behind: ranks that will not end by themselves.
        """
        log = self.work / "log"
        for old in self.work.glob("log.*"):
            old.unlink()
        argv = order.pop("argv", [*OPTIONS, "--output_dir", str(folder), *options])
        order |= {"world": world, "argv": argv, "faults": list(faults), "log": str(log)}
        self.send(order | {"left_behind": list(left_behind)})
        self.receive()
        *codes, orphans = self.receive()
        assert orphans == 0
        return Ended(codes, [Path(f"{log}.{rank}").read_text() for rank in range(world)])

    def send(self, order: dict[str, Any]) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()

    def receive(self) -> list[int]:
        assert self.server.stdout is not None
        for line in self.server.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError("the fork server has ended")

    def undisturbed(self, world: int, *options: str) -> Path:
        """The run to compare with; made once for each set of options."""
        folder = self.work / f"undisturbed {world} {' '.join(options)}".replace("/", "_").strip()
        if not folder.exists():
            ended = self.run(folder, world, *options)
            assert ended.codes == [0] * world, ended.logs
            for rank in range(world):
                (self.work / f"log.{rank}.events").rename(folder / f"events.{rank}")
        return folder

    def finish(self, folder: Path, world: int, *options: str) -> Ended:
        """Resumes a run, or starts it if it did not come so far as to have a configuration, to its end."""
        if (folder / "config.yaml").exists():
            options = (*options, "--resume")
        ended = self.run(folder, world, *options)
        assert ended.codes == [0] * world, ended.logs
        return ended


def events(whole: Path, rank: int) -> dict[str, int]:
    """How often each event happened on a rank of an undisturbed run."""
    return json.loads((whole / f"events.{rank}").read_text())


def untimed(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, less what is of the clock and the machine."""
    return [
        {key: value for key, value in record.items() if not key.startswith(("time/", "memory/"))}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The exported model."""
    return load_file(folder / "model/model.safetensors")


def checkpoints(folder: Path) -> list[str]:
    """Names in the folder of the checkpoints, whatever they are."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def same_weights(folder: Path, other: Path) -> bool:
    """Bit for bit."""
    mine, theirs = weights(folder), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def assert_same(folder: Path, whole: Path) -> None:
    """Metrics, responses and weights are those of the undisturbed run, to the last bit, and nothing is left
    over."""
    assert untimed(folder) == untimed(whole)
    assert same_weights(folder, whole)
    for name in (path.name for path in (whole / "rollouts").iterdir()):
        assert (folder / "rollouts" / name).read_text() == (whole / "rollouts" / name).read_text()
    for part in ("rollouts", "checkpoints"):
        names = [sorted(path.name for path in (run / part).iterdir()) for run in (folder, whole)]
        assert names[0] == names[1]
