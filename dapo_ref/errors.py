"""Errors whose message is one line for the user: what is wrong, where, and how to mend it."""

import contextlib
import json
import os
import time
from pathlib import Path


def one_line(error: BaseException | None) -> str:
    """An error of others' code within such a line; its text may be many, or fail itself."""
    try:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    except Exception:
        return type(error).__name__


class UserError(Exception):
    """The base; a command that meets one prints its line and ends with exit code 2."""


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used."""


class DataError(UserError, ValueError):
    """Data that cannot be used; the message names file and line."""


class TrainingError(UserError, RuntimeError):
    """Training cannot go on."""


def tell_launcher(message: str) -> None:
    """Leaves a message for torch's launcher, which shows it last, after its own traceback.

    The launcher reads it from a file that it names in the environment; without one nothing happens."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        with contextlib.suppress(OSError):
            content = json.dumps({"message": message, "timestamp": int(time.time())})
            Path(file).write_text(content, encoding="utf-8")
