"""Configuration: one flat frozen dataclass, read from YAML files and the command line.

Defaults are the paper's values (§4.1) wherever the paper gives one; the help of each key says so. Files are
given with `--config a.yaml b.yaml`, later ones override earlier ones, and `--key value` overrides them all.
An unknown key is an error that names the nearest known one, or ours for a key of another project
(`coming_from.py`). Combinations that cannot work are refused here, before a model is loaded.
"""

from dapo_ref.config.changes import FREE_KEYS, INEXACT_KEYS, START_KEYS, Change, differences
from dapo_ref.config.keys import DEFAULT_PROMPT_TEMPLATE, Config, Sampling, option, resolve_model
from dapo_ref.config.names import choose, unknown_keys
from dapo_ref.config.reading import StrictParser, config_text, load_config, read_config

__all__ = [
    "DEFAULT_PROMPT_TEMPLATE",
    "FREE_KEYS",
    "INEXACT_KEYS",
    "START_KEYS",
    "Change",
    "Config",
    "Sampling",
    "StrictParser",
    "choose",
    "config_text",
    "differences",
    "load_config",
    "option",
    "read_config",
    "resolve_model",
    "unknown_keys",
]
