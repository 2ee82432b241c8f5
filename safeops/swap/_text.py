"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SHOWN = 40  # rows of a printed table


def columns(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns; the model itself, whose name is empty, is said so."""
    at = titles.index("module")
    shown = [[str(cell) for cell in row] for row in rows[:_SHOWN]]
    for row in shown:
        row[at] = row[at] or "(the model)"
    widths = [max(map(len, column)) for column in zip(titles, *shown, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (list(titles), *shown)]
    more = len(rows) - len(shown)
    return "\n".join(lines + [f"... and {more} more"] * (more > 0))
