"""A run drawn: pictures for documents, figures of an evaluation as bars."""

from dapo_ref.report.pictures import PANELS, draw, main, page, positions

__all__ = ["PANELS", "draw", "main", "page", "positions"]
