"""`dapo_ref/run_folder.py`: a run folder is opened once, and nothing in it is overwritten by accident."""

import pytest

from dapo_ref.config import Config, ConfigError, read_config
from dapo_ref.run_folder import RunFolder


def test_a_new_folder_holds_the_resolved_configuration(tmp_path):
    config = Config(output_dir=str(tmp_path / "run"), seed=7)
    RunFolder(tmp_path / "run").open(config)
    assert read_config(tmp_path / "run" / "config.yaml") == config


def test_a_folder_with_a_run_is_refused_and_left_as_it_was(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(Config(seed=1))
    before = folder.config_file.read_text()
    with pytest.raises(ConfigError, match=r"already holds a run; --resume continues it"):
        folder.open(Config(seed=2))
    assert folder.config_file.read_text() == before
    folder.open(Config(seed=1, resume=True))


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not an empty folder"):
        RunFolder(tmp_path).open(Config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run to resume"):
        RunFolder(tmp_path / "nothing").open(Config(resume=True))


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        RunFolder(tmp_path / "file" / "run").open(Config())


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
