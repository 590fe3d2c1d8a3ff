"""How the rows of a source are read: which columns are question and answer, and whether others are kept."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """What a configuration says about rows.

    Attributes:
        question: column of the question, or of chat messages; `a.b` is field b of column a. Empty: the known
            layouts, a bare question or verl's.
        answer: column of the answer; the same.
        pattern: regular expression with one group, whose last match in the answer is the reference.
        keep_fields: problems carry the other columns of their rows, for a reward function. References then
            are the function's to understand: they may be lists or objects, and none is checked.
        optional: a source without these columns is read by the known layouts; for held-out data beside it.
    """

    question: str = ""
    answer: str = ""
    pattern: str = ""
    keep_fields: bool = False
    optional: bool = False

    @property
    def named(self) -> bool:
        """Whether a column is named."""
        return bool(self.question or self.answer)

    def of(self, columns: Iterable[str]) -> "Layout":
        """The layout of a source with these columns: this one, or the known ones where they may stand in."""
        wanted = [name for name in (self.question, self.answer) if name]
        if self.optional and wanted and not all(has_column(columns, name) for name in wanted):
            return Layout(keep_fields=self.keep_fields)
        return self


DEFAULT = Layout()


def has_column(columns: Iterable[str], path: str) -> bool:
    """Whether a source with these columns may have a path: a column of this name, or one it begins with."""
    return path in columns or path.split(".")[0] in columns
