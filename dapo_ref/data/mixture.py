"""The problems that a configuration trains on: of one source, or of several with weights."""

import logging
from collections.abc import Sequence
from pathlib import Path

from dapo_ref.config import Config
from dapo_ref.data.problems import Problem, load_problems
from dapo_ref.errors import ConfigError

log = logging.getLogger(__name__)


def split_sources(text: str) -> list[str]:
    """The sources of `data`: with commas between them, unless the whole is the name of a file."""
    if Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def load_data(config: Config) -> list[Problem]:
    """Reads `data`.

    Of several sources one without the named columns is read by the known layouts, and a prompt that stands in
    an earlier source is dropped.

    Returns:
        The problems in order; with `data_weights` those of small sources several times, so that an epoch
        holds each source in its share and no problem is left out.

    Raises:
        ConfigError: weights and sources are not equally many, or a weight is 0.
        DataError: as `load_problems`.
    """
    sources = split_sources(config.data)
    weights = [float(part) for part in config.data_weights.split(",") if part.strip()]
    if weights and (len(weights) != len(sources) or min(weights) <= 0):
        raise ConfigError(
            f"data_weights needs a number above 0 for each of the {len(sources)} sources of data, "
            f"got {config.data_weights!r}"
        )
    parts = [
        load_problems(source, prompt_template=config.prompt_template, layout=config.layout(len(sources) > 1))
        for source in sources
    ]
    if len(parts) == 1:
        return parts[0]
    parts = _without_earlier(sources, parts)
    if weights:
        parts = weighted(parts, weights)
    total = sum(map(len, parts))
    for source, part in zip(sources, parts, strict=True):
        log.info(
            "%s: %d of %d prompts of an epoch (%.1f %%)", source, len(part), total, 100 * len(part) / total
        )
    return [problem for part in parts for problem in part]


def weighted(parts: Sequence[Sequence[Problem]], weights: Sequence[float]) -> list[list[Problem]]:
    """Each source as often as its share asks for; the one that is largest for its weight once."""
    epoch = max(len(part) / weight for part, weight in zip(parts, weights, strict=True))
    counts = [max(len(part), round(weight * epoch)) for part, weight in zip(parts, weights, strict=True)]
    return [[part[i % len(part)] for i in range(count)] for part, count in zip(parts, counts, strict=True)]


def _without_earlier(sources: Sequence[str], parts: Sequence[Sequence[Problem]]) -> list[list[Problem]]:
    seen: set[str] = set()
    kept = []
    for source, part in zip(sources, parts, strict=True):
        new = [problem for problem in part if repr(problem.messages) not in seen]
        seen |= {repr(problem.messages) for problem in part}
        if not new:
            raise ConfigError(f"data: all problems of {source} stand in an earlier source; leave it out")
        if len(new) < len(part):
            log.warning("%s: %d problems stand in an earlier source, dropped", source, len(part) - len(new))
        kept.append(new)
    return kept
