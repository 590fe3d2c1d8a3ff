"""The documents name functions and tests that exist, and leave out no equation, trap or departure."""

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from dapo_ref.config import Config
from dapo_ref.run.options import Options

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT / "docs" / "paper.md"
DOCUMENTS = [f for f in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if f.exists()]
REFERENCE = re.compile(r"([\w/.-]+\.py):([A-Za-z_][\w.]*)")


@cache
def names_in(file: Path) -> frozenset[str]:
    """Functions, classes, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    return frozenset(names)


def rows(first_cell: str) -> dict[str, list[str]]:
    """Rows of the paper companion's tables whose first cell matches, by that cell."""
    lines = [line.strip("| ").split(" | ") for line in PAPER.read_text().splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in lines if re.fullmatch(first_cell, cells[0])}


@pytest.mark.parametrize("document", DOCUMENTS, ids=[f.name for f in DOCUMENTS])
def test_every_function_and_test_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    own = {"FILE.py", *re.findall(r"^# (\w+\.py)$", text, re.MULTILINE)}  # of the reader, of the page itself
    named = {(file, name) for file, name in REFERENCE.findall(text) if file not in own}
    missing = [
        f"{file}:{name}"
        for file, name in sorted(named)
        if not (ROOT / file).exists() or name.rstrip(".") not in names_in(ROOT / file)
    ]
    assert missing == []


KEYS = {
    "train.py": {field.name for field in fields(Config)} | {"config", "plan", "gpus", "gpu_memory"},
    "evaluate.py": {field.name for field in fields(Options)},
}


def unknown_words(command: str) -> list[str]:
    """Keys and configuration files of a command that there are not; what stands before its script is the
    launcher's."""
    words = command.split()
    script = next((word for word in words if word in KEYS), None)
    if script is None:
        return []
    own = words[words.index(script) + 1 :]
    own = own[: next((i for i, word in enumerate(own) if word in ("&&", "|", ">", "#", "2>&1")), len(own))]
    keys = [word[2:].partition("=")[0] for word in own if word.startswith("--")]
    files = [word for word in words if re.fullmatch(r"configs/[\w./-]+\.yaml", word)]
    return [key for key in keys if key not in KEYS[script]] + [f for f in files if not (ROOT / f).is_file()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=[f.name for f in DOCUMENTS])
def test_every_command_shown_has_keys_and_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    found = {line: unknown_words(line) for line in lines if "[" not in line}
    assert {line: words for line, words in found.items() if words} == {}


def test_a_command_with_a_wrong_key_or_file_is_seen() -> None:
    command = "accelerate launch --num_processes 2 train.py --config configs/none.yaml --sed=3 && x --key"
    assert unknown_words(command) == ["sed", "configs/none.yaml"]


def anchors(file: Path) -> set[str]:
    """Of the headings of a document, as they are linked to."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda file: file.name)
def test_every_link_inside_the_project_leads_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        if not target.startswith("http"):
            file = document.parent / name if name else document
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(target)
    assert dead == []


@pytest.mark.parametrize("place", [*(f"Eq. {number}" for number in range(4, 14)), "Alg. 1"])
def test_every_equation_has_its_function_and_its_test(place: str) -> None:
    _, functions, tests = rows(r"Eq\. \d+|Alg\. 1")[place]
    assert [file for file, _ in REFERENCE.findall(functions) if file.startswith("dapo_ref/")]
    assert [name for file, name in REFERENCE.findall(tests) if file.startswith("tests/test_")]


def test_every_trap_has_its_row() -> None:
    traps = rows(r"\d+")
    assert list(traps) == [str(number) for number in range(1, 24)]
    assert [number for number, (_, test) in traps.items() if test != "—" and not REFERENCE.search(test)] == []


def test_every_departure_is_explained() -> None:
    """Each `D1` in the code has a paragraph that opens with it, and their numbers have no gap."""
    explained = sorted(int(n) for n in re.findall(r"^\*\*D(\d+), ", PAPER.read_text(), re.MULTILINE))
    assert explained == list(range(1, len(explained) + 1))
    sources = [*(ROOT / "dapo_ref").rglob("*.py"), *ROOT.glob("*.py")]
    used = {int(n) for file in sources for n in re.findall(r"\bD(\d+)\b", file.read_text())}
    assert used <= set(explained)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"```bash\n(.*?)\n```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tests,) = [command for command in commands if command.endswith("pytest")]
    assert tests in (ROOT / ".ci/run").read_text().splitlines()


def test_the_readmes_first_command_names_files_that_exist() -> None:
    commands = re.findall(r"```bash\n(.*?)\n```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    first = commands[0]
    assert first.startswith("python3.11 -m venv .venv && ")
    for word in first.split():
        if word.endswith((".py", ".yaml", ".txt")):
            assert (ROOT / word).is_file(), word
