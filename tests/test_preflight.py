"""`dapo_ref/preflight/`: each check passes on a sound machine, and says what to do on one that is not."""

import dataclasses
import fcntl
import importlib.metadata
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError
from dapo_ref.plan import Phase
from dapo_ref.policy import attention, kv_cache
from dapo_ref.preflight import machine
from dapo_ref.preflight.checks import Checks, FailedError, NotHereError
from dapo_ref.preflight.policy import PolicyChecks
from tests.support.helpers import OneProcess, random_llama, save_model
from tests.support.plain_engine import PlainEngine, ThreadProcesses, in_threads

# --- How checks are run -------------------------------------------------------------------------------------


def checks() -> Checks:
    return Checks(OneProcess())


def fail() -> str:
    raise FailedError("this is wrong:\n do that")


def not_here() -> str:
    raise NotHereError("for GPUs")


def broken() -> str:
    raise RuntimeError("of a library")


def config_error() -> str:
    raise ConfigError("key: wrong")


@pytest.mark.parametrize(
    ("check", "result", "detail"),
    [
        (lambda: "fine", "ok", "fine"),
        (fail, "failed", "this is wrong: do that"),
        (not_here, "not here", "for GPUs"),
        (broken, "failed", "RuntimeError: of a library"),
        (config_error, "failed", "key: wrong"),
    ],
)
def test_every_end_of_a_check_is_a_line(check: Any, result: str, detail: str, capsys: Any) -> None:
    found = checks()
    assert found.run("name of it", check) is (result != "failed")
    assert found.rows == [("name of it", result, detail)]
    assert found.failed == (["name of it"] if result == "failed" else [])
    assert capsys.readouterr().out.split(maxsplit=3)[:3] == ["name", "of", "it"]


def test_what_one_process_finds_wrong_is_the_result_of_all() -> None:
    def work(processes: ThreadProcesses) -> list[Any]:
        found = Checks(processes)
        found.run("disk", fail if processes.rank == 1 else lambda: "fine")
        return found.rows

    for rows in in_threads(3, work):
        assert rows == [("disk", "failed", "rank 1: this is wrong: do that")]


# --- The machine --------------------------------------------------------------------------------------------


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "deepspeed" in machine.versions()
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.1" if name == "deepspeed" else real(name)
    )
    with pytest.raises(FailedError, match=r"deepspeed 0\.1, not \d.*pip install -r requirements\.txt"):
        machine.versions()


def test_data_are_read_as_a_run_reads_them(tmp_path: Path) -> None:
    """Several sources, columns of other names, a pattern for the answer."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text('{"task": "1 + 1", "solution": "so #### 2"}\n', encoding="utf-8")
    two.write_text('{"task": "2 + 2", "solution": "so #### 4"}\n', encoding="utf-8")
    columns = {"question_column": "task", "answer_column": "solution", "answer_pattern": "#### (.+)"}
    assert machine.data(Config(data=f"{one}, {two}", **columns)) == "2 prompts"


@pytest.mark.parametrize("leftover", [False, True], ids=["", "with a word of another time"])
def test_a_folder_that_is_not_shared_is_seen(tmp_path: Path, leftover: bool) -> None:
    if leftover:
        (tmp_path / "elsewhere/run.preflight").mkdir(parents=True)
        (tmp_path / "elsewhere/run.preflight/word").write_text("earlier", encoding="utf-8")

    def work(processes: ThreadProcesses) -> str:
        folder = tmp_path / ("here" if processes.rank < 2 else "elsewhere") / "run.preflight"
        try:
            return machine.shared_folder(processes, folder)
        except FailedError as error:
            return str(error)

    *same, other = in_threads(3, work)
    assert same == [str(tmp_path / "here")] * 2
    assert "is not the one that rank 0 sees: set output_dir" in other


def test_locks_that_others_do_not_see_or_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(_: Any) -> str:
        try:
            return machine.lock(_, tmp_path)
        except FailedError as error:
            return str(error)

    assert set(in_threads(2, lock)) == {"held by rank 0, seen by the last rank"}
    assert lock(OneProcess()) == "held"
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda *_: None)  # a lock for each machine
        assert "does not see rank 0's lock" in in_threads(2, lock)[0]

    def no_locks(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "no locks (Operation not supported)" in lock(OneProcess())


def test_the_disk_holds_one_checkpoint_more_than_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10⁹ parameters: three checkpoints of 12 bytes and a model of 2 are 38 GB; without checkpoints 2. Twice
    512 × 16 responses of 20,480 × 4 bytes are 1.3 GB."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 39 * 10**9))
    with pytest.raises(
        FailedError, match=r"39\.3 GB for checkpoints, model and responses, 39\.0 GB free: make"
    ):
        machine.disk(Config(keep_checkpoints=2), tmp_path, 10**9)
    assert machine.disk(Config(checkpoint_every=0), tmp_path, 10**9).startswith("3.3 GB")


def test_sums_and_order_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotHereError, match="one process"):
        machine.collectives(OneProcess())

    class Rounding(OneProcess):
        def sum(self, values: Any) -> list[float]:
            return torch.tensor(values, dtype=torch.float32).add(1).double().tolist()

    with pytest.raises(FailedError, match="float64"):
        machine.collectives(Rounding())

    class Disordered(OneProcess):
        def gather(self, items: list[Any]) -> list[Any]:
            return [*items, *items]

    with pytest.raises(FailedError, match="order of the ranks"):
        machine.collectives(Disordered())


# --- The policy ---------------------------------------------------------------------------------------------


class Checked(PlainEngine):
    """With the data types that the real engine tells."""

    dtypes = (torch.float32, torch.float32)

    def state_dtypes(self) -> dict[str, torch.dtype]:
        return dict(zip(("master weights", "summed gradients"), self.dtypes, strict=True))


@pytest.fixture
def policy(tmp_path: Path) -> PolicyChecks:
    model = random_llama(vocab_size=800)
    config = Config(model=str(save_model(tmp_path / "model", model)), precision="fp32")
    return PolicyChecks(Checked(config))  # type: ignore[arg-type]


def test_a_sound_policy_passes(policy: PolicyChecks) -> None:
    assert policy.precision() == "master weights and summed gradients in float32"
    assert "gradient norm" in policy.update()
    assert "packed and padded rows differ by" in policy.packing()
    assert "sampled and trained policy differ by" in policy.sampling()
    for check in (policy.decoding, policy.kernels, lambda: policy.memory(largest)):
        with pytest.raises(NotHereError, match="for GPUs"):
            check()


def largest() -> Phase:
    return Phase("rollout", "rollout_batch_size", {"rows": 3e6, "states": 4.5e7})


def test_what_is_planned_is_allocated_once(policy: PolicyChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def empty(size: int, **_: Any) -> None:
        asked.append(size)
        if size > 3 * 10**7:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(policy, "_require_gpu", lambda: None)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2 * 10**7)
    assert policy.memory(largest) == "0.0 GB planned for rollout fit"
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 10**7)
    with pytest.raises(FailedError, match="planned for rollout do not fit: rollout_batch_size; see"):
        policy.memory(largest)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 10**8)
    policy.memory(largest)
    assert asked == [28 * 10**6, 38 * 10**6, 0]


def test_packed_attention_that_sees_too_much_is_found(
    policy: PolicyChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_visible", lambda *_: None)
    with pytest.raises(FailedError, match=r"packed and padded rows differ by .*: set packing to false"):
        policy.packing()


def test_a_cache_that_loses_its_place_is_found(policy: PolicyChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that join another's cache get the wrong mask."""
    merge = kv_cache.merge
    calls = []

    def shifted(old: Any, new: Any) -> Any:
        rows = merge(old, new)
        calls.append(rows)
        return dataclasses.replace(rows, mask=rows.mask.roll(1, dims=0))

    monkeypatch.setattr("dapo_ref.policy.rollout.merge", shifted)
    with pytest.raises(FailedError, match=r"sampled and trained policy differ by .*policy/sampler_gap_mean"):
        policy.sampling()
    assert calls


def test_a_gradient_or_a_type_that_is_wrong_is_found(
    policy: PolicyChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy.engine, "step", lambda rate: float("nan"))
    with pytest.raises(FailedError, match="the gradient's norm is nan"):
        policy.update()
    monkeypatch.setattr(policy.engine, "dtypes", (torch.float32, torch.bfloat16), raising=False)
    with pytest.raises(FailedError, match=r"summed gradients are torch\.bfloat16, not float32"):
        policy.precision()


def test_on_a_gpu_new_lengths_and_kernels_are_looked_at(
    policy: PolicyChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is a stand-in: what is measured comes from here."""
    monkeypatch.setattr(policy, "_require_gpu", lambda: None)
    times = iter([64 * 0.2, 64 * 0.01, 64 * 0.02, 64 * 0.01])
    monkeypatch.setattr("dapo_ref.preflight.policy.seconds", lambda *_, **__: next(times))
    with pytest.raises(FailedError, match=r"200\.0 ms a token at new lengths, 10\.0 ms"):
        policy.decoding()
    assert policy.decoding().startswith("20.0 ms")
    keys = ["flash_fwd_kernel<x>", "gemm", "pytorch_flash::flash_bwd"]
    trace = SimpleNamespace(key_averages=lambda: [SimpleNamespace(key=key) for key in keys])
    manager = type("M", (), {"__enter__": lambda self: trace, "__exit__": lambda self, *_: None})()
    monkeypatch.setattr("dapo_ref.preflight.policy.profile", lambda **_: manager)
    assert policy.kernels() == "flash"
    keys[:] = ["softmax", "gemm"]
    with pytest.raises(FailedError, match="no fused attention kernel"):
        policy.kernels()
