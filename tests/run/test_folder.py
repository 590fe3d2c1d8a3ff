"""`dapo_ref/run/folder.py`: a run folder is opened once, and nothing in it is overwritten by accident."""

import math
import os

import pytest
import torch

from dapo_ref.config import Config, read_config
from dapo_ref.errors import ConfigError
from dapo_ref.run import folder as folder_module
from dapo_ref.run.files import read_lines
from dapo_ref.run.folder import MAX_BAD_UPDATES, RunFolder


def test_a_new_folder_holds_the_resolved_configuration(tmp_path):
    config = Config(output_dir=str(tmp_path / "run"), seed=7)
    RunFolder(tmp_path / "run").open(config)
    assert read_config(tmp_path / "run" / "config.yaml") == config


def test_a_folder_with_a_run_is_refused_and_left_as_it_was(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config(seed=1))
    before = folder.config_file.read_text()
    with pytest.raises(ConfigError, match=r"a run; --resume .*--output_dir .*rm -r .*/run\)"):
        folder.open(Config(seed=2))
    assert folder.config_file.read_text() == before
    folder.open(Config(seed=1, resume=True))


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"not an empty folder, it holds thesis\.tex: choose"):
        RunFolder(tmp_path).open(Config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run to resume"):
        RunFolder(tmp_path / "nothing").open(Config(resume=True))


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*/file is a file"):
        RunFolder(tmp_path / "file" / "run").open(Config())
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        RunFolder(tmp_path / "file").open(Config())


def test_a_folder_that_gives_no_permission_is_said(tmp_path, monkeypatch):
    """Asked of the nearest folder that exists; nothing is made. Pretended, since root may write anywhere."""
    asked = []
    monkeypatch.setattr(folder_module.os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(ConfigError, match=f"{tmp_path} gives no permission, or is read-only"):
        RunFolder(tmp_path / "new" / "run").require_usable(Config())
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_inside_a_model_is_refused(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    RunFolder(model / "runs" / "first").require_usable(Config())
    (model / "config.json").write_text("{}")
    RunFolder(model / "runs" / "first").require_usable(Config())  # any folder may have a config.json
    (model / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")  # and a tokenizer alone is no model
    RunFolder(tmp_path / "run").require_usable(Config())
    with pytest.raises(ConfigError, match=f"lies inside the model {model}: "):
        RunFolder(model / "runs" / "first").require_usable(Config())


def test_rollouts_and_metrics_are_cut_back_to_a_step(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config())
    for step in (1, 2, 3):
        folder.write_rollouts(step, [{"response": f"step {step}\u2028é"}])
        folder.metrics.append({"step": step})
    folder.forget_after(2)
    names = sorted(path.name for path in (folder.path / "rollouts").iterdir())
    assert names == ["step_000001.jsonl", "step_000002.jsonl"]
    assert len(folder.metrics.path.read_text().splitlines()) == 2


def test_only_complete_checkpoints_count_oldest_first(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config())
    for name in ("step_000010", "step_000002", "partial_step_000011"):
        (folder.path / "checkpoints" / name).mkdir()
    assert [path.name for path in folder.checkpoints()] == ["step_000002", "step_000010"]


def test_a_run_that_was_killed_before_it_had_a_name_can_be_started_again(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml.tmp").write_text("mod")
    RunFolder(folder).open(Config(seed=3))
    assert read_config(folder / "config.yaml").seed == 3


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    first = RunFolder(tmp_path / "run")
    first.open(Config())
    with pytest.raises(ConfigError, match="another run is writing to"):
        RunFolder(tmp_path / "run").open(Config(resume=True))
    del first  # as the end of its process would
    RunFolder(tmp_path / "run").open(Config(resume=True))


CHANGES = {
    "rollout_steps": (7, False),
    "keep_checkpoints": (5, False),
    "tokens_per_microbatch": (999, False),
    "learning_rate": (3e-6, True),
    "clip_eps_high": (0.2, True),
    "prompts_per_step": (1024, True),
}


@pytest.mark.parametrize("key", CHANGES)
def test_a_change_of_the_mathematics_is_refused_unless_it_is_wanted(tmp_path, caplog, key):
    value, is_mathematics = CHANGES[key]
    RunFolder(tmp_path / "run").open(Config())
    before = (tmp_path / "run/config.yaml").read_text()
    changed = {key: value, "resume": True}
    if is_mathematics:
        with pytest.raises(ConfigError, match=rf"{key} was .*, is {value}; restore it"):
            RunFolder(tmp_path / "run").open(Config(**changed))
        assert (tmp_path / "run/config.yaml").read_text() == before
    caplog.clear()
    folder = RunFolder(tmp_path / "run")
    folder.open(Config(**changed, allow_config_change=is_mathematics))
    assert f"{key} changes from" in caplog.text
    assert ("last bits differ" in caplog.text) == (key == "tokens_per_microbatch")
    folder.keep_config(Config(**changed, allow_config_change=True))
    kept = read_config(tmp_path / "run/config.yaml")
    assert (getattr(kept, key), kept.resume, kept.allow_config_change) == (value, False, False)


def test_bad_updates_are_kept_up_to_a_number(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config())
    for update in range(30):
        folder.write_bad_update(1, update, 0, {"losses": [float("nan")]})
    files = sorted((folder.path / "bad_updates").iterdir())
    assert len(files) == MAX_BAD_UPDATES
    assert math.isnan(torch.load(files[0])["losses"][0])


def test_only_the_newest_responses_stay_where_that_is_wanted(tmp_path):
    """Compressed ones count as those that are not; a file of another name is nobody's."""
    folder = RunFolder(tmp_path)
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts/step_000001.jsonl.gz").write_bytes(b"")
    (tmp_path / "rollouts/notes.txt").write_text("", encoding="utf-8")
    for step in (2, 3, 4):
        folder.write_rollouts(step, [{"response": "é"}])
    names = ["notes.txt", "step_000001.jsonl.gz", *(f"step_00000{step}.jsonl" for step in (2, 3, 4))]
    assert sorted(file.name for file in (tmp_path / "rollouts").iterdir()) == names
    folder.write_rollouts(5, [{"response": "é"}], keep=3)
    names = ["notes.txt", *(f"step_00000{step}.jsonl" for step in (3, 4, 5))]
    assert sorted(file.name for file in (tmp_path / "rollouts").iterdir()) == names
    assert read_lines(tmp_path / "rollouts/step_000005.jsonl") == [{"response": "é"}]


def test_what_a_killed_start_leaves_is_no_run_and_anything_else_is_something(tmp_path):
    for name in ("rollouts", "checkpoints"):
        (tmp_path / name).mkdir()
    for name in ("lock", "config.yaml.tmp"):
        (tmp_path / name).write_text("")
    RunFolder(tmp_path).require_usable(Config())
    (tmp_path / "tokens").mkdir()
    with pytest.raises(ConfigError, match="it holds tokens"):
        RunFolder(tmp_path).require_usable(Config())


def test_a_checkpoint_has_a_number_and_nothing_else_in_its_name(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config())
    for name in ("step_000002", "step_000002.old", "step_", "step_1000000"):
        (folder.path / "checkpoints" / name).mkdir()
    assert [path.name for path in folder.checkpoints()] == ["step_000002", "step_1000000"]


def test_a_run_is_opened_once_and_resumed_with_what_may_change(tmp_path, caplog):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config(seed=1))
    lock = folder._lock
    folder.open(Config(seed=1, resume=True, rollout_steps=7, packing=False))
    assert folder._lock is lock
    assert read_config(folder.config_file).rollout_steps == Config().rollout_steps  # kept once it is resumed
    assert [record.getMessage() for record in caplog.records] == [
        "resume: rollout_steps changes from 1000 to 7",
        "resume: packing changes from True to False; sums are taken in another order, the last bits differ",
    ]
    with pytest.raises(ConfigError, match=r"temperature was 1\.0, is 0\.5; seed was 1, is 2; restore it"):
        folder.open(Config(seed=2, temperature=0.5, resume=True))


def test_responses_and_tokens_are_named_by_step_and_written_as_they_are(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "rollouts").mkdir()
    folder.write_rollouts(12, [{"response": "é"}, {"response": "x"}])
    folder.write_tokens(12, [{"group": 0}])
    assert (tmp_path / "rollouts/step_000012.jsonl").read_text(encoding="utf-8") == (
        '{"response": "é"}\n{"response": "x"}\n'
    )
    assert (tmp_path / "tokens/step_000012.jsonl").read_text(encoding="utf-8") == '{"group": 0}\n'
    folder.write_bad_update(3, 40, 5, {"losses": [1.0]})
    (file,) = (tmp_path / "bad_updates").iterdir()
    assert file.name == "step_000003_update_000040_rank_00005.pt"


def test_a_bad_update_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "bad_updates").write_text("a file in the way")
    RunFolder(tmp_path).write_bad_update(1, 1, 0, {})
    assert "cannot be written" in caplog.text
