"""The walls of the house: which part of the project may import which."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dapo_ref"

# A part imports from itself and from the parts before it, and from nothing else of the project.
ORDER = [
    "errors",
    "launcher",
    "loss",
    "loss_variants",
    "reward",
    "dynamic_sampling",
    "coming_from",
    "layout",
    "config",
    "usage",
    "workers",
    "verifier",
    "own_reward",
    "tiny.tasks",
    "data",
    "types",
    "policy",
    "objective",
    "scoring",
    "evaluation",
    "plan",
    "distributed",
    "run",
    "tiny",
    "report",
    "compare",
    "preflight",
]
ALONE = {"loss", "reward", "dynamic_sampling"}
"""The paper's own pages import nothing of the project."""

ONLY_DISTRIBUTED = {"deepspeed", "accelerate"}
"""Packages that no part below `distributed` may know."""


def part_of(module: str) -> str:
    """The part that a module of the package belongs to: `policy` for `policy.packing`."""
    return max((p for p in ORDER if module == p or module.startswith(f"{p}.")), key=len)


def modules() -> dict[str, Path]:
    """Every module of the package by its name below `dapo_ref.`."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file
    del found["__init__"]
    return found


def imports(file: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(file: Path) -> set[str]:
    """Those of the package, as `policy.packing`; a name that is no module stands for the module it is in."""
    known = modules()
    found = set()
    for name in imports(file):
        inside = name.removeprefix("dapo_ref.")
        if inside != name:
            found.add(inside if inside in known else inside.rpartition(".")[0] or inside)
    return found


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_from_parts_before_its_own(name: str) -> None:
    part = part_of(name)
    allowed = {part} if part in ALONE else set(ORDER[: ORDER.index(part) + 1])
    assert {i for i in own_imports(modules()[name]) if part_of(i) not in allowed} == set()


@pytest.mark.parametrize("name", modules())
def test_only_the_distributed_part_and_those_after_it_know_deepspeed_and_accelerate(name: str) -> None:
    if ORDER.index(part_of(name)) < ORDER.index("distributed"):
        assert {i.partition(".")[0] for i in imports(modules()[name])} & ONLY_DISTRIBUTED == set()


@pytest.mark.parametrize("name", modules())
def test_no_module_of_the_package_imports_the_scripts(name: str) -> None:
    assert {i.partition(".")[0] for i in imports(modules()[name])} & {"train", "evaluate", "tests"} == set()


def test_what_a_researcher_imports_keeps_its_name() -> None:
    for name in (
        *("loss", "reward", "dynamic_sampling", "objective", "scoring", "config", "types", "evaluation"),
        *("report", "data", "verifier"),
    ):
        importlib.import_module(f"dapo_ref.{name}")


def loaded_by(module: str) -> set[str]:
    """The modules that are loaded once `module` is, in an interpreter of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


def test_drawing_a_report_loads_neither_deepspeed_nor_a_model() -> None:
    found = loaded_by("dapo_ref.report")
    assert found & {"deepspeed", "accelerate", "transformers", "torch"} == set()


def test_the_papers_pages_load_nothing_but_torch() -> None:
    found = loaded_by("dapo_ref.loss, dapo_ref.reward, dapo_ref.dynamic_sampling")
    own = {name for name in found if name.startswith("dapo_ref.")}
    assert own == {"dapo_ref.loss", "dapo_ref.reward", "dapo_ref.dynamic_sampling"}
    assert found & {"deepspeed", "accelerate", "transformers"} == set()


def without_encoding(file: Path) -> list[int]:
    """Lines that open a text file in the encoding of the machine's locale."""
    found = []
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        keys = {keyword.arg: keyword.value for keyword in call.keywords}
        words = [n.value for n in [*call.args, keys.get("mode")] if isinstance(n, ast.Constant)]
        modes = [w for w in words if isinstance(w, str) and set(w) <= set("rwaxbt+")]
        is_open = name in ("open", "fdopen") and not any("b" in mode for mode in modes)
        opens = is_open and (modes or isinstance(call.func, ast.Name) or not call.args)
        written = isinstance(call.func, ast.Attribute) and name in ("read_text", "write_text")
        if "encoding" not in keys and (opens or written):
            found.append(call.lineno)
    return found


OWN_FILES = [*PACKAGE.rglob("*.py"), *ROOT.glob("*.py"), *ROOT.glob("benchmarks/*.py")]


@pytest.mark.parametrize("file", OWN_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_text_files_are_opened_as_utf_8_in_any_locale(file: Path) -> None:
    assert without_encoding(file) == []


def test_a_file_opened_without_encoding_is_seen(tmp_path: Path) -> None:
    lines = ["open(p)", "p.open()", "p.open('w')", "p.read_text()", "p.write_text(t)", "open(p, mode='a')"]
    fine = ["open(p, 'rb')", "p.open(encoding='utf-8')", "p.read_text(encoding='utf-8')", "p.open(mode='wb')"]
    file = tmp_path / "file.py"
    file.write_text("\n".join([*lines, *fine]) + "\n", encoding="utf-8")
    assert sorted(without_encoding(file)) == [1, 2, 3, 4, 5, 6]
