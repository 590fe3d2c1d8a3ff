"""`dapo_ref/distributed/tracking.py`: what TensorBoard and wandb are given, read back where they are
installed."""

import importlib.util
import json
import sys

import pytest
from accelerate import Accelerator

from dapo_ref.config import Config
from dapo_ref.distributed import tracking
from dapo_ref.errors import ConfigError

ROWS = [
    {"prompt": f"p{i}", "response": "<b>\n**x**", "reference": "1", "answer": None, "status": "wrong"}
    | {"reward": -1.0, "length": i}
    for i in range(8)
]


def record(step):
    return {"step": step, "loss": 0.5 * step, "reward/mean": 0.1 * step, "grad_norm": None}


def run(config, steps_done, steps):
    """A start of a run: tracks some steps and ends."""
    accelerator = Accelerator(cpu=True, log_with=config.tracker, project_dir=config.output_dir)
    tracking.start_tracker(accelerator, config, steps_done)
    for step in steps:
        tracking.track(accelerator, record(step), ROWS)
    accelerator.end_training()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_what_is_not_installed_is_one_line(monkeypatch, name):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"tracker: {name} is not installed: `pip install {name}`"):
        tracking.require_tracker(Config(tracker=name))
    tracking.require_tracker(Config())


def test_a_folder_of_the_trackers_name_is_no_package(monkeypatch, tmp_path):
    """Such as wandb leaves where it was used once."""
    (tmp_path / "wandb").mkdir()
    for name in [n for n in sys.modules if n.split(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ConfigError, match="wandb is not installed: `pip install wandb`"):
        tracking.require_tracker(Config(tracker="wandb"))


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="no TensorBoard")
def test_tensorboard_reads_back_each_step_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = Config(tracker="tensorboard", output_dir=str(tmp_path / "run"))
    run(config, 0, [1, 2, 3])
    run(config, 2, [3, 4])  # step 3 was not in the checkpoint
    events = EventAccumulator(str(tmp_path / "run/dapo_ref"))
    events.Reload()
    tags = events.Tags()
    assert {"update/loss", "reward/mean"} <= set(tags["scalars"])
    assert "update/grad_norm" not in tags["scalars"]
    assert [(e.step, e.value) for e in events.Scalars("update/loss")] == [(s, 0.5 * s) for s in (1, 2, 3, 4)]
    assert {"response/length", "reward/reward"} <= set(tags["histograms"])
    assert events.Histograms("response/length")[-1].histogram_value.num == len(ROWS)
    text = events.Tensors("responses/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert [text.count(f"prompt: p{i}") for i in range(8)] == [1, 0] * 4
    assert all(line.startswith("    ") for line in text.splitlines())


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="no wandb")
def test_wandb_goes_on_offline_with_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = Config(tracker="wandb", output_dir=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    run(config, 0, [1, 2])
    run(config, 2, [3])
    folders = list((tmp_path / "run/wandb").glob("offline-run-*"))
    number = (tmp_path / "run/wandb_id").read_text()
    assert folders
    assert all(folder.name.endswith(number) for folder in folders)


def test_what_wandb_is_given(monkeypatch, tmp_path):
    class Stand:
        name = "wandb"

        def log(self, values, step):
            logged.append((step, values))

    logged = []
    stand_in = type("wandb", (), {"Histogram": list, "Table": lambda columns, data: (columns, data)})
    monkeypatch.setitem(__import__("sys").modules, "wandb", stand_in)
    tracking.track(type("A", (), {"trackers": [Stand()]}), record(2), ROWS)
    ((step, values),) = logged  # one call a step
    assert step == 2
    assert (values["update/loss"], values["reward/mean"]) == (1.0, 0.2)
    assert values["response/length"] == [float(i) for i in range(8)]
    assert [cells[0] for cells in values["responses"][1]] == ["p0", "p2", "p4", "p6"]
    json.dumps(values)


def test_the_run_keeps_its_number(tmp_path):
    assert tracking._run_id(tmp_path / "id") == tracking._run_id(tmp_path / "id")
    assert tracking._run_id(tmp_path / "id") != tracking._run_id(tmp_path / "other")
