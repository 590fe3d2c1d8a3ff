"""How a command ends: one line for what the user can mend, and an exit code."""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import NoReturn

from dapo_ref.errors import UserError
from dapo_ref.launcher import launched_as_main, refuse, tell_launcher
from dapo_ref.run.preemption import StoppedError, exit_code_of

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG}
"""What needs no traceback."""


def leave(code: int) -> NoReturn:
    """Ends the process without finalizing the interpreter, once everything is flushed.

    CPU: a gloo worker thread may drop the last reference to a finished collective while the interpreter
    finalizes; it asks for the GIL, is made to exit inside a destructor, and C++ calls terminate: exit code
    −6 after all the work is done, now and then, more often on a busy machine.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(run: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    """Runs a command and turns its end into an exit code.

    Returns:
        What the command returns, 0 for None; 2 after one line on what the user can mend; 130 or 143 after a
        signal; 1 after anything else.
    """
    if isinstance(sys.stdout, TextIOWrapper):  # a locale without a character must not end a run
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="%(message)s", level=logging.INFO if launched_as_main() else logging.ERROR)
    logging.getLogger("huggingface_hub").propagate = False  # it prints its lines itself
    try:
        return run(argv) or 0
    except UserError as error:
        refuse(f"error: {error}")
        return 2
    except StoppedError as stopped:
        tell_launcher(f"{stopped}; --resume goes on")
        return exit_code_of(stopped.signal)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            traceback.print_exc()
        line = f"error: {error}; the run can be resumed once that is mended"
        tell_launcher(line)
        print(line, file=sys.stderr)
        return 1
    except Exception as error:
        traceback.print_exc()
        tell_launcher(f"error: {type(error).__name__}: {error}")
        return 1
