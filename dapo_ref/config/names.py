"""Names that nobody knows: what is said about them."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dapo_ref import coming_from
from dapo_ref.errors import ConfigError

T = TypeVar("T")


def choose(table: Mapping[str, T], key: str, name: str) -> T:
    """The row of a table that a configuration names.

    Raises:
        ConfigError: there is none of that name; the message gives the nearest one.
    """
    if name not in table:
        nearest = difflib.get_close_matches(name, table, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{key}: unknown name {name!r}; did you mean {nearest!r}? (there are: {', '.join(table)})"
        )
    return table[name]


def unknown_keys(keys: Sequence[str], where: str, known: Sequence[str]) -> str:
    """The message about keys that are not known; those of other projects are answered with ours."""
    answers = [coming_from.answer(key, known) for key in keys]
    parts = [found or _nearest(key, known) for key, found in zip(keys, answers, strict=True)]
    more = f"; and {len(parts) - 8} more" if len(parts) > 8 else ""
    page = f"; {coming_from.PAGE} has the tables" if any(answers) else ""
    return f"{where}: unknown key{'s'[: len(parts) - 1]} {'; '.join(parts[:8])}{more}{page}"


def _nearest(key: str, known: Sequence[str]) -> str:
    if key in known:
        return f"{key!r}: write it as --{key} VALUE"
    if "." in key:
        return f"{key!r}: no key here has a dot in it"
    near = difflib.get_close_matches(key, known, n=1)
    return (
        f"{key!r}; did you mean {near[0]!r}?" if near else f"{key!r}: no key is spelled like it, see --help"
    )


def unknown_words(words: Sequence[str]) -> list[str]:
    """The keys among the words that the parser does not know; its first word where none looks like a key."""
    keys = [word_key(word) for word in words if word.startswith("--")]
    keys += [coming_from.override_key(word) or "" for word in words if not word.startswith("--")]
    return [key for key in keys if key] or [word_key(words[0])]


def leaves(key: str, value: Any) -> list[str]:
    """`a: {b: 1, c: 2}` as `a.b` and `a.c`, the keys of a nested file."""
    if not isinstance(value, Mapping) or not value:
        return [key]
    return [leaf for name, below in value.items() for leaf in leaves(f"{key}.{name}", below)]


def word_key(word: str) -> str:
    """`--key=value`, `--key` or `--a-key` as `key` or `a_key`."""
    return word.split("=")[0].removeprefix("--").replace("-", "_")
