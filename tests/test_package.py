"""What `pip install .` brings, and the papers of the package."""

import tomllib
from pathlib import Path

import yaml
from setuptools import find_packages

import dapo_ref

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_an_install_has_every_file_of_the_package() -> None:
    tool = SETTINGS["tool"]["setuptools"]
    found = {Path(name.replace(".", "/")) for name in find_packages(str(ROOT), **tool["packages"]["find"])}
    brought = {file for folder in found for file in (ROOT / folder).glob("*.py")}
    for name, patterns in tool["package-data"].items():
        folder = ROOT / name.replace(".", "/")
        brought |= {file for pattern in patterns for file in folder.glob(pattern)}
    there = {file for file in (ROOT / "dapo_ref").rglob("*") if file.is_file()}
    assert {
        str(file.relative_to(ROOT)) for file in there - brought if "__pycache__" not in file.parts
    } == set()


def test_there_is_one_version() -> None:
    assert SETTINGS["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dapo_ref.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == dapo_ref.__version__
    assert citation["license"] == SETTINGS["project"]["license"]
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert newest.startswith(dapo_ref.__version__)
