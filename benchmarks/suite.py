"""All rows; a new op is its forms, its inputs and its rows, in the file of its kind."""

from __future__ import annotations

from . import elementwise, gradients, softmax
from .rows import Row

ROWS: tuple[Row, ...] = (*elementwise.ROWS, *softmax.ROWS, *gradients.ROWS)
OPS: tuple[str, ...] = tuple(dict.fromkeys(row.op for row in ROWS))
