"""DeepSpeed's operators are compiled the first time they are needed, through torch, which guards a build by
a lock file.

A build that was killed leaves its lock, and every later run would wait for it without an end and without a
word. Here the wait comes first, says what it waits for, and ends: nobody compiles a small operator for so
long.
"""

import logging
import os
import sys
import time
from pathlib import Path

from torch.utils import cpp_extension

log = logging.getLogger(__name__)

ABANDONED_AFTER_S = 300.0
"""Age of a lock that no living build holds; a build takes about a minute on two busy cores."""


def prepare() -> None:
    """Makes the build tool be found, and waits for builds by others; an abandoned lock is removed.

    ninja is installed beside this interpreter, which need not be on PATH."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
    for lock in root.glob("**/deepspeed_*/lock"):
        wait_for(lock)


def wait_for(lock: Path, poll_s: float = 0.5) -> None:
    """Returns when the lock is gone; removes it once it is older than `ABANDONED_AFTER_S`."""
    said = False
    while (age := _age(lock)) is not None:
        if age > ABANDONED_AFTER_S:
            log.warning("%s: left by a build that was killed; removed", lock)
            lock.unlink(missing_ok=True)
        elif not said:
            said = True
            log.info("%s: another process compiles; waiting, at most %.0f s", lock, ABANDONED_AFTER_S - age)
        time.sleep(poll_s)


def _age(lock: Path) -> float | None:
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return None
