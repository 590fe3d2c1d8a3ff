"""YAML files and the command line as a checked `Config`, and back as text."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from dapo_ref import coming_from
from dapo_ref.config.keys import Config
from dapo_ref.config.names import leaves, unknown_keys, unknown_words, word_key
from dapo_ref.errors import ConfigError

# In a file these may be lists.
LIST_KEYS = frozenset({"data", "data_weights", "eval_data"})


def load_config(argv: Sequence[str]) -> Config:
    """Reads `--config FILE [FILE …] [--key value …]`.

    Args:
        argv: the command line without the program's name.

    Returns:
        The resolved configuration, `output_dir` filled in.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, a value of the wrong kind, an impossible
            combination.
        SystemExit: after `--help`.
    """
    parser = StrictParser(Config, prog="train.py", description="Train a model with DAPO.")
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="YAML, later override earlier",
    )
    given = parser.parse_given(argv)
    files = given.pop("config", [])
    if overrides := [word for word in files if coming_from.override_key(word) and not Path(word).exists()]:
        parser.refuse(overrides)  # `--config a.yaml data.seed=1`
    values: dict[str, Any] = {}
    for file in files:
        values |= _read_file(Path(file))
    values |= given
    if not values.get("output_dir"):
        values["output_dir"] = str(Path("runs") / (Path(files[0]).stem if files else "default"))
    for key in {"model", "data", "output_dir"} & values.keys():
        values[key] = os.path.expanduser(values[key])
    if values.get("eval_data"):  # separated by commas
        values["eval_data"] = re.sub(
            r"[^,\s][^,]*", lambda part: os.path.expanduser(part[0]), values["eval_data"]
        )
    return Config(**values)


def config_text(config: Config) -> str:
    """The configuration as YAML that `read_config` reads back to an equal one."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def read_config(file: Path) -> Config:
    """Reads a file that holds `config_text`.

    Raises:
        ConfigError: as for `load_config`.
    """
    return Config(**_read_file(file))


class StrictParser(HfArgumentParser):
    """The command line of a dataclass; every error is raised, so that it can name its file."""

    def __init__(self, dataclass_type: Any, **kwargs: Any) -> None:
        super().__init__([dataclass_type], allow_abbrev=False, **kwargs)
        self._keys = [field.name for field in dataclasses.fields(dataclass_type)]

    def parse_given(self, argv: Sequence[str]) -> dict[str, Any]:
        """The keys that the command line sets, checked, and no others.

        Raises:
            ConfigError: an unknown key, or a value of the wrong kind.
        """
        namespace, unknown = self.parse_known_args(list(argv))
        if unknown:
            self.refuse(unknown)
        given = {word_key(word) for word in argv if word.startswith("--")}
        return {key: getattr(namespace, key) for key in vars(namespace) if key in given}

    def refuse(self, words: Sequence[str]) -> None:
        """Raises ConfigError about words that are no keys."""
        raise ConfigError(unknown_keys(unknown_words(words), "command line", self._keys))

    def error(self, message: str) -> Any:
        raise ConfigError(message)

    def _add_dataclass_arguments(self, dtype: Any) -> None:
        """Without the `--no_key` twin of each key that is true by default: one way to say a thing."""
        super()._add_dataclass_arguments(dtype)
        for action in [a for a in self._actions if any(o.startswith("--no_") for o in a.option_strings)]:
            self._remove_action(action)
            for option in action.option_strings:
                self._option_string_actions.pop(option)


class _StrictLoader(yaml.SafeLoader):
    """YAML without its surprises: a key twice, where the last would win, `010` as 8 and `off` as false."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands there twice")
        return super().construct_mapping(node, deep)

    def construct_word(self, node: Any) -> str:
        """A word as it is written; the key's own type reads it, `010` as ten and `1:30` not at all."""
        return str(node.value)


for _tag in ("int", "float", "bool", "timestamp"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _StrictLoader.construct_word)


def _read_file(file: Path) -> dict[str, Any]:
    """One YAML file as checked values.

    They go through the command line's parser: `1e-6`, a string to YAML, is a number to it, and a value of the
    wrong kind is refused in the same words."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{file}: must hold `key: value` lines, found {type(content).__name__}")
    known = [field.name for field in dataclasses.fields(Config)]
    found = [leaf for key, value in content.items() for leaf in leaves(str(key), value)]
    unknown = [leaf for leaf in found if leaf not in known]
    if unknown:
        raise ConfigError(unknown_keys(unknown, str(file), known))
    words = []
    for key, value in content.items():
        if isinstance(value, list) and key in LIST_KEYS:
            value = ", ".join(map(str, value))
        if isinstance(value, (list, dict)) or value is None:
            raise ConfigError(f"{file}: {key} must be a single value, got {value!r}")
        words.append(f"--{key}={value}")
    try:
        return StrictParser(Config).parse_given(words)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
