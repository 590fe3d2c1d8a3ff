"""Errors whose message is one line for the user: what is wrong, where, and how to mend it."""


def one_line(error: BaseException | None) -> str:
    """An error of others' code within such a line; its text may be many, or fail itself."""
    try:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    except Exception:
        return type(error).__name__


class UserError(Exception):
    """The base; a command that meets one prints its line and ends with exit code 2."""


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used."""


class DataError(UserError, ValueError):
    """Data that cannot be used; the message names file and line."""


class TrainingError(UserError, RuntimeError):
    """Training cannot go on."""
