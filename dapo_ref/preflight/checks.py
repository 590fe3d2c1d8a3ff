"""How checks are run, on all processes together, and shown."""

from collections.abc import Callable
from typing import NamedTuple

from dapo_ref.distributed.processes import Processes
from dapo_ref.errors import UserError

OK, FAILED, NOT_HERE = "ok", "failed", "not here"


class FailedError(Exception):
    """What is wrong and what to do."""


class NotHereError(Exception):
    """Why a check does not apply to this machine."""


class Row(NamedTuple):
    """A check's line in the table."""

    name: str
    result: str
    detail: str


class Checks:
    """Runs checks on all processes together and collects their lines."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.rows: list[Row] = []

    def run(self, name: str, check: Callable[[], str]) -> bool:
        """One check; a collective. What any process finds wrong is the result.

        Returns:
            Whether it did not fail.
        """
        self.processes.watch.doing = f"check of {name}"
        result, detail = _outcome(check)
        found = self.processes.gather([(result, detail)])
        for rank, (other, why) in enumerate(found):
            if other == FAILED:
                result, detail = FAILED, f"rank {rank}: {why}" if len(found) > 1 else why
                break
        self.rows.append(Row(name, result, detail))
        if self.processes.is_main:
            print(f"{name:<22}  {result:<8}  {detail}", flush=True)
        return result != FAILED

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [row.name for row in self.rows if row.result == FAILED]


def _outcome(check: Callable[[], str]) -> tuple[str, str]:
    try:
        return OK, check()
    except NotHereError as reason:
        return NOT_HERE, str(reason)
    except (FailedError, UserError) as error:
        return FAILED, " ".join(str(error).split())
    except Exception as error:  # of any library: that is what the check is for
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
