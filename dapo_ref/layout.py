"""How the rows of a source are read: which columns, and whether the others are kept."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """What a configuration says about rows.

    Attributes:
        keep_fields: problems carry the other columns of their rows, for a reward function. References then
            are the function's to understand: they may be lists or objects, and none is checked.
    """

    keep_fields: bool = False


DEFAULT = Layout()
