"""All rows; a new op is its forms, its inputs and its rows, in the file of its kind."""

from __future__ import annotations

from . import diagnose, elementwise, gpu_rows, gradients, guard, softmax, swap
from .gpu import CPU
from .rows import Row

ROWS: tuple[Row, ...] = (
    *elementwise.ROWS,
    *softmax.ROWS,
    *gradients.ROWS,
    *swap.ROWS,
    *diagnose.ROWS,
    *guard.ROWS,
)
OPS: tuple[str, ...] = tuple(dict.fromkeys(row.op for row in ROWS))


def rows_on(device: str) -> tuple[Row, ...]:
    """Those that are measured there."""
    return ROWS if device == CPU else gpu_rows.rows()
