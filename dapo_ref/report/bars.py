"""The figures of an evaluation as a bar picture: one SVG, written by hand, so that no package is needed."""

import html
from collections.abc import Mapping
from typing import Any

_BAR, _GAP, _TOP, _HEIGHT = 26, 24, 44, 180
_COLOURS = ("#0072b2", "#e69f00")  # apart for the colour-blind too


def bars(data_sets: Mapping[str, Mapping[str, Any]]) -> str:
    """avg@k with its standard error, and maj@k, a pair of bars a data set.

    Args:
        data_sets: `evaluation.figures`.
    """
    parts: list[str] = []
    width = 60 + len(data_sets) * (2 * _BAR + _GAP + 56)
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y(share)
        parts.append(f'<path d="M44 {y}H{width - 10}" stroke="#ccc"/>')
        parts.append(f'<text x="38" y="{y + 4}" text-anchor="end" fill="#555">{share:.2f}</text>')
    for i, (name, results) in enumerate(data_sets.items()):
        left = 60 + i * (2 * _BAR + _GAP + 56)
        for j, kind in enumerate(("avg@", "maj@")):
            value = next(value for key, value in results.items() if key.startswith(kind))
            x, y = left + j * (_BAR + 18), _y(value)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_BAR}" height="{_y(0) - y}" fill="{_COLOURS[j]}" rx="2"/>'
                f'<text x="{x + _BAR / 2}" y="{y - 12}" text-anchor="middle">{value:.3f}</text>'
            )
            error = results["standard_error"]
            if kind == "avg@" and error:
                low, high = _y(max(0, value - error)), _y(min(1, value + error))
                parts.append(f'<path d="M{x + _BAR / 2} {low}V{high}" stroke="#000" stroke-width="2"/>')
        label = html.escape(name if len(name) <= 18 else "…" + name[-17:])
        parts.append(f'<text x="{left + _BAR + 9}" y="{_y(0) + 18}" text-anchor="middle">{label}</text>')
    k = next(iter(data_sets.values()))["samples_per_problem"]
    legend = "".join(
        f'<rect x="{44 + 150 * j}" y="8" width="12" height="12" fill="{colour}" rx="2"/>'
        f'<text x="{62 + 150 * j}" y="18">{kind}@{k}</text>'
        for j, (kind, colour) in enumerate(zip(("avg", "maj"), _COLOURS, strict=True))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(width, 320)} {_TOP + _HEIGHT + 34}" '
        f'width="{max(width, 320)}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{legend}{"".join(parts)}</svg>\n'
    )


def _y(share: float) -> float:
    return round(_TOP + _HEIGHT * (1 - share), 1)
