"""`dapo_ref/usage.py`: what the commands say before torch is imported."""

import dataclasses
import re
import subprocess
import sys

import pytest

from dapo_ref.config import Config, load_config
from dapo_ref.run.options import Options, read_options
from dapo_ref.usage import EVALUATE, LAUNCH, TRAIN, all_keys, answer, check, one_key
from tests.support.helpers import ROOT

HELP = """
import runpy, sys
for file in ("train.py", "evaluate.py", "dapo_ref/data/__main__.py", "dapo_ref/verifier/__main__.py",
             "dapo_ref/report/__main__.py"):
    sys.argv = [file, "--help"]
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        assert not end.code, file
    assert "torch" not in sys.modules, file
"""


def asked(argv: list[str], keys: type = Config, usage: str = TRAIN, needed: tuple[str, ...] = ()) -> int:
    with pytest.raises(SystemExit) as end:
        answer(argv, keys, usage, needed)
    return int(str(end.value.code))


def test_help_of_every_command_comes_before_torch_is_imported() -> None:
    code = ["-c", HELP]
    done = subprocess.run([sys.executable, *code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("clip_eps_high") == 1
    assert "samples_per_problem" in done.stdout


ERRORS = """
import runpy, sys
for argv, words in (
    (["train.py", "--config", "configs/tiny_cpu.yaml", "--clip_ratio_high", "0.3"], "clip_eps_high"),
    (["train.py", "--config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
    (["evaluate.py", "--model", "tiny", "--output", "o", "--limit", "-1"], "limit must be 0"),
):
    sys.argv, said = argv, []
    sys.stderr.write = lambda text: said.append(text)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        del sys.stderr.write
        assert end.code == 2, end.code
    assert "".join(said).startswith("error: ") and words in "".join(said), said
    assert "torch" not in sys.modules, argv
"""


def test_what_cannot_be_read_is_said_before_torch_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ERRORS], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_a_command_line_that_can_be_read_goes_on(capsys, monkeypatch) -> None:
    check(load_config, ["--config", "configs/tiny_cpu.yaml"])
    check(read_options, ["--model", "~/m", "--output", "~/o"])
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        check(load_config, ["--config", "nowhere.yaml"])
    assert capsys.readouterr() == ("", "")  # one of several processes speaks


def test_of_the_processes_that_mpi_starts_one_speaks(capsys, monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for rank, spoken in (("1", False), ("0", True)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        with pytest.raises(SystemExit):
            check(load_config, ["--config", "nowhere.yaml"])
        assert ("nowhere.yaml" in capsys.readouterr().err) == spoken
        assert asked(["--help"]) == 0
        assert bool(capsys.readouterr().out) == spoken


def test_the_home_folder_is_meant(monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    options = read_options(["--model", "~/m", "--output", "~/o", "--data", "~/d", "e"])
    assert (options.model, options.output, options.data) == ("/h/m", "/h/o", ["/h/d", "e"])


def test_train_without_a_configuration_shows_three_commands_and_starts_nothing(capsys) -> None:
    assert asked(["--data", "mine.jsonl"], needed=("--config",)) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", TRAIN + "\n")
    assert len(re.findall(rf"^    {LAUNCH} train\.py --config ", shown.err, re.MULTILINE)) == 3
    for argv in (["--config", "a.yaml"], ["--config=a.yaml"]):
        answer(argv, Config, TRAIN, needed=["--config"])  # goes on
    assert asked(["--model", "m"], Options, EVALUATE, ("--model", "--output")) == 2


def test_the_commands_of_the_usage_name_files_that_exist() -> None:
    files = re.findall(r"configs/\S+\.yaml", TRAIN)
    assert len(set(files)) == 3
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_launcher_is_told_of_a_usage_and_not_of_help(tmp_path, monkeypatch) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert asked(["--help"]) == 0
    assert not file.exists()
    assert asked([], needed=("--config",)) == 2
    assert "A run needs a configuration" in file.read_text(encoding="utf-8")


def test_one_of_several_processes_speaks_and_all_tell_the_launcher(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert asked([], needed=("--config",)) == 2
    assert capsys.readouterr() == ("", "")
    assert "A run needs a configuration" in (tmp_path / "error.json").read_text(encoding="utf-8")


def test_all_keys_stand_in_the_groups_of_the_configuration() -> None:
    lines = all_keys(Config, width=110).splitlines()
    keys = [line.split()[0] for line in lines if re.match(r"  \w", line)]
    assert keys == [field.name for field in dataclasses.fields(Config)]
    titles = [line.split("  ")[0] for line in lines if re.match(r"\w", line)]
    source = (ROOT / "dapo_ref/config/keys.py").read_text(encoding="utf-8")
    assert titles == re.findall(r"# --- (.+?) -+\n", source)
    assert max(map(len, lines)) <= 110
    assert len(lines) < 130


@pytest.mark.parametrize(
    ("key", "default", "paper"),
    [
        ("clip_eps_high", "0.28", "0.28"),
        ("temperature", "1.0", "1.0*"),  # the authors' code, and not the paper
        ("dynamic_sampling", "true", "true"),
        ("seed", "0", ""),
        ("dual_clip", "0.0", "none"),
        ("rollout_steps", "1000", ""),
    ],
)
def test_defaults_and_the_papers_values_stand_in_columns(key: str, default: str, paper: str) -> None:
    lines = all_keys(Config, width=110).splitlines()
    head = next(line for line in lines if line.endswith("paper"))
    (line,) = [line for line in lines if line.startswith(f"  {key} ")]
    columns = [head.index("default"), head.index("paper"), lines_start(lines)]
    assert line[columns[0] : columns[1]].strip() == default
    assert line[columns[1] : columns[2]].strip() == paper
    assert "[paper" not in "".join(lines)
    assert "[recipe" not in "".join(lines)


def lines_start(lines: list[str]) -> int:
    """The column where helps start."""
    return next(line for line in lines if line.startswith("  group_size ")).index("responses a prompt")


def test_one_key_is_shown_at_length(capsys) -> None:
    assert asked(["--help", "dual_clip"]) == 0
    text = capsys.readouterr().out
    assert "c of the authors' dual clip (D3); 0 is off\n" in text
    assert re.search(r"paper: +none\n", text)
    assert re.search(r"authors' code: +10\n", text)
    assert re.search(r"on --resume: +must stay", text)
    assert re.search(r"kind: +one of bf16, fp32\n", one_key(Config, "precision"))
    assert re.search(r"on --resume: +may change, with the same numbers", one_key(Config, "tracker"))
    assert re.search(r"on --resume: +may change; sums are taken in another order", one_key(Config, "packing"))
    assert "on --resume" not in one_key(Options, "top_p")


def test_a_key_that_does_not_exist_has_no_help(capsys) -> None:
    assert asked(["--help", "clip_eps_hi"]) == 2
    assert capsys.readouterr().err == "--help: unknown key 'clip_eps_hi'; did you mean 'clip_eps_high'?\n"
    assert asked(["--help", "--config", "a.yaml"]) == 0  # no key: all of them


def test_the_command_that_resumes_is_understood(tmp_path) -> None:
    """What the usage says of RUN/config.yaml holds: it names its own folder."""
    (tmp_path / "config.yaml").write_text(f"output_dir: {tmp_path}\nseed: 3\n", encoding="utf-8")
    config = load_config(["--config", str(tmp_path / "config.yaml"), "--resume"])
    assert (config.output_dir, config.resume, config.seed) == (str(tmp_path), True, 3)
