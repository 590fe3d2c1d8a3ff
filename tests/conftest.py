"""Property tests draw the same examples each time, without a time limit: no result depends on luck or load.
Processes that tests launch find DeepSpeed's operators in a folder of this checkout, compiled before any test
is timed."""

import os
import subprocess
import sys
from pathlib import Path

# Models here are so small that threads of an operation wait for each other longer than they compute: forty
# times longer on a busy machine. To be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = ROOT / "build" / "torch_extensions"
LAUNCHERS = {"launch", "Runs"}
"""What test modules import from tests/support/ to start training processes."""

settings.register_profile("default", derandomize=True, deadline=None, max_examples=60, database=None)
# For `tests/mutations.py`: it wants to see a failure, not the smallest one.
settings.register_profile(
    "mutations", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], max_examples=20
)
settings.load_profile("default")
os.environ["TORCH_EXTENSIONS_DIR"] = str(EXTENSIONS)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for the whole suite; none for named tests, which start at once and can be debugged."""
    return 2 if config.args_source is config.ArgsSource.TESTPATHS else 0


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.option.numprocesses and not session.config.option.collectonly:
        compile_operators()  # here, since what the processes print is not shown


def launches(item: pytest.Item) -> bool:
    """Whether tests of its file start training processes."""
    return hasattr(item, "module") and bool(LAUNCHERS & vars(item.module).keys())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first, so that none is left alone at the end."""
    items.sort(key=lambda item: not launches(item))


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(launches(item) for item in session.items) and not session.config.option.collectonly:
        compile_operators()


def compile_operators() -> None:
    """DeepSpeed's, for this checkout."""
    if not any(EXTENSIONS.glob("*/*.so")):
        print("\ncompiling DeepSpeed's operator for the tests, once: about a minute", flush=True)
        subprocess.run([sys.executable, "-m", "dapo_ref.distributed.native_build"], cwd=ROOT, check=True)
