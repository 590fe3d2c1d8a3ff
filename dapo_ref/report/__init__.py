"""A run drawn: a page to look at it in, a picture for documents, figures of an evaluation as bars.

Imports neither DeepSpeed nor a model.
"""

from dapo_ref.report.command import main
from dapo_ref.report.pictures import PANELS, draw, positions

__all__ = ["PANELS", "draw", "main", "positions"]
