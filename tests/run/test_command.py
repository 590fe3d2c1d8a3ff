"""`dapo_ref/run/command.py`: how a command ends, alone and under a launcher."""

import errno
import json
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError
from dapo_ref.launcher import tell_launcher
from dapo_ref.run.command import exit_code
from dapo_ref.run.preemption import StoppedError
from dapo_ref.usage import TRAIN, answer


def refuse(argv: Sequence[str]) -> None:
    raise ConfigError("model: somewhere holds no model")


def test_a_refusal_is_one_line_and_exit_code_2(capsys) -> None:
    assert exit_code(refuse, []) == 2
    assert capsys.readouterr().err == "error: model: somewhere holds no model\n"


def test_the_launcher_ends_with_the_line_of_the_process_that_failed(monkeypatch, tmp_path: Path) -> None:
    """As torch puts it together: its report, read by its own code, closes with our line and a rule."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert exit_code(refuse, []) == 2
    told = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(file))
    silent = ProcessFailure(local_rank=1, pid=2, exitcode=2, error_file=str(tmp_path / "none"))
    report = str(ChildFailedError("train.py", {0: told, 1: silent})).rstrip().splitlines()
    assert report[-2] == "  traceback : error: model: somewhere holds no model"
    assert set(report[-1]) == {"="}


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (StoppedError(signal.SIGTERM), 143, "stopped by SIGTERM; --resume goes on"),
        (StoppedError(signal.SIGINT), 130, "stopped by SIGINT; --resume goes on"),
        (
            OSError(errno.ENOSPC, "No space left"),
            1,
            "error: [Errno 28] No space left; the run can be resumed",
        ),
        (ZeroDivisionError("by 0"), 1, "error: ZeroDivisionError: by 0"),
    ],
    ids=str,
)
def test_every_end_has_its_exit_code_and_tells_the_launcher(monkeypatch, tmp_path: Path, error, code, told):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))

    def fail(argv: Sequence[str]) -> None:
        raise error

    assert exit_code(fail, []) == code
    assert json.loads(file.read_text(encoding="utf-8"))["message"].startswith(told)


def test_what_the_hub_says_is_said_once(monkeypatch) -> None:
    """A hub that cannot be reached is asked several times, each with a line, which stood there twice: its
    package prints it, and so did the root of all loggers."""
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    exit_code(lambda argv: None, [])
    assert not logging.getLogger("huggingface_hub").propagate


def test_the_launcher_ends_with_the_usage_where_that_is_shown(monkeypatch, tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    with pytest.raises(SystemExit):
        answer(["--help"], Config, TRAIN, ["--config"])
    assert not file.exists()  # nothing failed
    with pytest.raises(SystemExit):
        answer([], Config, TRAIN, ["--config"])
    assert json.loads(file.read_text(encoding="utf-8"))["message"] == TRAIN


def test_a_message_that_cannot_be_left_is_no_error(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no folder" / "error.json"))
    tell_launcher("error: unheard")
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    tell_launcher("error: unheard")
