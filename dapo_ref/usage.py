"""What a command prints before torch is imported: a short usage, all its keys, one key at length.

Imports the configuration and nothing that takes seconds to load.
"""

import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dapo_ref.config import FREE_KEYS, INEXACT_KEYS, START_KEYS, Config, unknown_keys
from dapo_ref.errors import UserError
from dapo_ref.launcher import launched_as_main, refuse

LAUNCH = "accelerate launch --config_file configs/accelerate/zero3.yaml"

TRAIN = f"""\
Train a model with DAPO (arXiv 2503.14476). A run needs a configuration; three to copy:

  the embedded model on a CPU, minutes:
    {LAUNCH} train.py --config configs/tiny_cpu.yaml
  your own model and data, with the settings of a smaller run:
    {LAUNCH} train.py --config configs/qwen2.5_1.5b.yaml --model DIR --data FILE
  a run that was stopped goes on:
    {LAUNCH} train.py --config RUN/config.yaml --resume
  whether it fits on N GPUs of GB 10^9 bytes each, without weights or GPU (exit code 3 if not):
    python train.py --plan --config FILE --gpus N --gpu_memory GB

--config FILE [MORE …]: later files override earlier ones, and `--key value` overrides them all.
--plan --gpus N --gpu_memory GB says whether a run fits, and starts nothing.
--help lists all keys, --help KEY shows one at length."""

EVALUATE = f"""\
Evaluate a model: avg@k, pass@j and maj@k on data sets.

  {LAUNCH} evaluate.py --model RUN_OR_DIR --data FILE [MORE …] --output DIR

--help lists all keys, --help KEY shows one at length."""


def answer(argv: Sequence[str], keys: type, usage: str, needed: Sequence[str]) -> None:
    """Ends the process if the command line asks for help, or lacks what the command cannot do without.

    Args:
        argv: the command line without the program's name.
        keys: the dataclass of the command's keys.
        usage: what is printed first.
        needed: words that must be on the command line.

    Raises:
        SystemExit: 0 after help, 2 after the usage.
    """
    words = [word.split("=")[0] for word in argv]
    asked = next((i for i, word in enumerate(words) if word in ("-h", "--help")), None)
    if asked is not None:
        key = next((word for word in argv[asked + 1 :][:1] if not word.startswith("-")), "")
        names = [field.name for field in dataclasses.fields(keys)]
        if key and key not in names:
            _leave(unknown_keys([key], "--help", names), 2)
        _leave(one_key(keys, key) if key else f"{usage}\n\n{all_keys(keys)}", 0)
    if not set(needed) <= set(words):
        _leave(usage, 2)


def check(read: Callable[[Sequence[str]], Any], argv: Sequence[str]) -> None:
    """Ends the process with exit code 2 if the command line cannot be read.

    Args:
        read: of the command line, as the command itself does it later.
        argv: the command line without the program's name.

    Raises:
        SystemExit: it cannot.
    """
    try:
        read(argv)
    except UserError as error:
        _leave(f"error: {error}", 2)


def _leave(text: str, code: int) -> None:
    if code:
        refuse(text)
    elif launched_as_main():
        print(text)
    sys.exit(code)


def all_keys(keys: type, width: int = 0) -> str:
    """Each key with its default and the paper's value, in the groups of the configuration.

    Args:
        width: of the text in columns; 0 is the terminal's.
    """
    width = width or min(shutil.get_terminal_size((110, 24)).columns, 140)
    rows = [_row(field) for field in dataclasses.fields(keys)]
    titles = _groups(keys) or {rows[0][0]: "Keys"}
    sizes = [max(len(row[i]) for row in rows) + 2 for i in range(3)]
    sizes[0] = max(sizes[0], *map(len, titles.values()))
    lines = ["* the authors' code has it; the paper does not say"] * any("*" in row[2] for row in rows)
    for name, default, paper, text in rows:
        if name in titles:
            lines += ["", f"{titles[name]:{sizes[0] + 2}}{'default':{sizes[1]}}paper"]
        start = f"  {name:{sizes[0]}}{default:{sizes[1]}}{paper:{sizes[2]}}"
        room = max(width - len(start), 30)
        wrapped = textwrap.wrap(text, room) or [""]
        lines += [start + wrapped[0]] + [" " * len(start) + more for more in wrapped[1:]]
    return "\n".join(lines)


def one_key(keys: type, name: str) -> str:
    """All that the configuration says of a key."""
    (field,) = [field for field in dataclasses.fields(keys) if field.name == name]
    text, paper, recipe = _help(field)
    kind = get_type_hints(keys)[name]
    kind = next((k for k in get_args(kind) if type(None) in get_args(kind) and k is not type(None)), kind)
    values = ", ".join(map(str, get_args(kind))) if get_origin(kind) is Literal else ""
    lines = [f"--{name}", "", *textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="  "), ""]
    facts = {
        "kind": f"one of {values}" if values else getattr(kind, "__name__", str(kind)),
        "default": repr(_default(field)),
        "paper": paper,
        "authors' code": recipe,
        "on --resume": _resume(name) if keys is Config else "",
    }
    return "\n".join(lines + [f"  {what + ':':15}{fact}" for what, fact in facts.items() if fact])


def _resume(name: str) -> str:
    """What becomes of a run that goes on with another value."""
    if name in START_KEYS:
        return "of one start, not of the run"
    if name in FREE_KEYS:
        return "may change, with the same numbers"
    if name in INEXACT_KEYS:
        return f"may change; {INEXACT_KEYS[name]}"
    return "must stay; --allow_config_change goes on as another algorithm"


def _row(field: dataclasses.Field[Any]) -> tuple[str, str, str, str]:
    """Key, default, the paper's value or the authors' code's, help."""
    text, paper, recipe = _help(field)
    default = _default(field)
    shown = str(default).lower() if isinstance(default, bool) else "" if default == [] else str(default)
    shown = shown if len(shown) <= 14 else f"{shown[:10]} …"
    return field.name, shown, paper or (f"{recipe}*" if recipe else ""), text


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _help(field: dataclasses.Field[Any]) -> tuple[str, str, str]:
    """The help without the `[paper: …, recipe: …]` at its end, and these two."""
    text, _, end = field.metadata["help"].partition("[paper: ")
    text, _, recipe = text.partition("[recipe: ") if not end else (text, "", end.partition("recipe: ")[2])
    return text.strip(), end.partition(", recipe")[0].rstrip("]"), recipe.rstrip("]")


def _groups(keys: type) -> dict[str, str]:
    """The titles of the groups, each by the key that comes first in it: the rules in the class's source."""
    source = inspect.getsource(keys)
    return {key: title for title, key in re.findall(r"# --- (.+?) -+\n(?:\s*#.*\n)*\s*(\w+):", source)}
