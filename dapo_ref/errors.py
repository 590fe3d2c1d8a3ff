"""Errors whose message is one line for the user: what is wrong, where, and how to mend it."""


class UserError(Exception):
    """The base; a command that meets one prints its line and ends with exit code 2."""


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used."""


class DataError(UserError, ValueError):
    """Data that cannot be used; the message names file and line."""


class TrainingError(UserError, RuntimeError):
    """Training cannot go on."""
