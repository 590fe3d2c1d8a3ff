"""`dapo_ref/distributed/native_build.py`: operators are compiled once, and a build that was killed does not
hold up the next run."""

import fcntl
import logging
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from dapo_ref.distributed import native_build
from dapo_ref.errors import ConfigError

BUILDER = """
import sys, time
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("building", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "some op"
    path.mkdir()
    return path


@pytest.fixture
def builder(folder):
    """Stands in for DeepSpeed's: keeps what it found, and leaves a library."""
    found = []

    def load(verbose):
        found.append((folder / "lock").exists())
        (folder / "some op.so").touch()

    return SimpleNamespace(name="some op", load=load, found=found)


@pytest.fixture
def building(folder):
    """A process that holds torch's lock, as torch takes it."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "building\n"
    yield process
    process.kill()
    process.communicate()


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def test_a_build_that_was_killed_holds_nobody_up(folder, building, builder, caplog):
    building.kill()
    building.wait()
    assert (folder / "lock").exists()
    native_build.load(builder, folder)
    assert builder.found == [False]
    assert f"{folder / 'lock'}: left by a build that was killed; removed" in caplog.text


def test_a_build_that_goes_on_is_never_too_old(folder, building, caplog):
    caplog.set_level(logging.INFO)
    os.utime(folder / "lock", (0, 0))
    assert native_build.who_builds(folder / "lock") == [building.pid]
    waiting = in_thread(native_build.wait_for, folder / "lock", 0.01)
    waiting.join(timeout=1.0)
    assert waiting.is_alive()
    assert (folder / "lock").exists()
    (folder / "lock").unlink()  # the build is done
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert f"waiting for process {building.pid}, which compiles there" in caplog.text
    assert "left by a build" not in caplog.text


def test_compilers_that_outlive_their_build_are_waited_for(folder):
    (folder / "lock").touch()
    with subprocess.Popen(["sleep", "600"], cwd=folder) as compiler:
        assert native_build.who_builds(folder / "lock") == [compiler.pid]
        waiting = in_thread(native_build.wait_for, folder / "lock", 0.01)
        waiting.join(timeout=0.5)
        assert (folder / "lock").exists()
        compiler.kill()
    waiting.join(timeout=60)
    assert not (folder / "lock").exists()


def test_a_lock_without_an_owner_is_looked_at_twice(folder, monkeypatch):
    # No owner, an owner, then nobody twice.
    looks = [[], [7], [], []]
    monkeypatch.setattr(native_build, "who_builds", lambda lock: looks.pop(0))
    (folder / "lock").touch()
    native_build.wait_for(folder / "lock", poll_s=0.0)
    assert looks == []
    assert not (folder / "lock").exists()


def test_one_process_at_a_time_compiles(folder, builder):
    with (folder / "owner").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = in_thread(native_build.load, builder, folder)
        waiting.join(timeout=0.5)
        assert builder.found == []
    waiting.join(timeout=60)
    assert builder.found == [False]


def test_what_is_compiled_is_said_once(folder, builder, caplog):
    caplog.set_level(logging.INFO)
    native_build.load(builder, folder)
    assert f"compiling DeepSpeed's operator some op, once, in {folder}" in caplog.text
    assert "some op compiled: 0 s" in caplog.text
    caplog.clear()
    native_build.load(builder, folder)
    assert caplog.text == ""


def test_a_missing_compiler_is_named_before_anything_is_built(folder, builder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler 'no-such-compiler': install g\+\+, or name"):
        native_build.load(builder, folder)
    assert builder.found == []
    (folder / "some op.so").touch()
    native_build.load(builder, folder)  # nothing to compile
    assert builder.found == [False]


def test_missing_headers_of_python_are_named(folder, builder, monkeypatch, tmp_path):
    monkeypatch.setattr(native_build.sysconfig, "get_path", lambda name: str(tmp_path / name))
    with pytest.raises(ConfigError, match=rf"no headers of Python \({tmp_path}/include/Python.h\): install"):
        native_build.load(builder, folder)
    assert builder.found == []


def test_a_folder_that_cannot_be_made_is_named(folder, builder):
    (folder / "file").touch()
    with pytest.raises(ConfigError, match=r"no place for it: .*Not a directory; .*TORCH_EXTENSIONS_DIR"):
        native_build.load(builder, folder / "file" / "some op")
    assert builder.found == []


def test_what_does_not_compile_is_one_line(folder, builder):
    def load(verbose):
        raise RuntimeError(
            "Error building extension 'some op'\n[1/2] c++ …\nshm.cpp:3: error: no such type\n"
        )

    builder.load = load
    with pytest.raises(
        ConfigError, match=r"some op does not compile: shm\.cpp:3: error: no such type; `ninja -C"
    ):
        native_build.load(builder, folder)


def test_a_run_asks_for_the_compiler_before_it_loads_anything(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(native_build.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="deepspeed_shm_comm has to be compiled once"):
        native_build.require_compiler()
    (tmp_path / "deepspeed_shm_comm").mkdir()
    (tmp_path / "deepspeed_shm_comm" / "deepspeed_shm_comm.so").touch()
    native_build.require_compiler()
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu")
    with pytest.raises(ConfigError, match="cpu_adam has to be compiled once"):
        native_build.require_compiler()


def test_the_folder_is_of_these_versions_and_ours(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = native_build.default_folder()
    assert folder.parent == tmp_path / "dapo_ref"
    assert native_build.torch.__version__ in folder.name
    assert native_build.deepspeed.__version__ in folder.name


@pytest.mark.parametrize(
    ("offload", "expected"), [(False, ["deepspeed_shm_comm"]), (True, ["deepspeed_shm_comm", "cpu_adam"])]
)
def test_what_a_run_on_the_cpu_needs(monkeypatch, tmp_path, offload, expected):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(native_build.torch.cuda, "is_available", lambda: False)
    loaded = []
    monkeypatch.setattr(native_build, "load", lambda builder, folder: loaded.append((builder.name, folder)))
    native_build.prepare(offload)
    assert loaded == [(name, tmp_path / name) for name in expected]
