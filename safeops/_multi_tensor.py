"""Lists of tensors, read and written as one: by the kernels, or in torch operations.

Both have: len, places (which of the objects they took), tensors (those), missing (which had
None), others (place and object that they cannot take), device, any_double, scale(value, shift) and
clip(min, max, nan). Those of kernels are on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _extension
from ._formulas import Formulas, Table
from ._route import readable
from ._statistics import Row

NORM, EXTREMES, EVERY = range(3)  # how much the kernels read
KERNEL_NORMS = (2.0, 1.0, math.inf, 0.0)  # read by the kernels, or derived from what they read


def gather(objects: list[Any], gradients: bool = False, p: float = 2.0) -> Any:
    """The tensors, or the gradients of the objects (each once), for norms of order p."""
    kernels = _kernels()
    if kernels is not None and p in KERNEL_NORMS:
        return kernels.Tensors(objects, gradients)
    return Formulas(objects, gradients)


def _kernels() -> Any:
    """They look at memory, so that no transform or tracer is in their way."""
    module = _extension.module if _extension.reason is None else None
    return module if module is not None and module.sees_tensors else None


def read_one(tensor: Any) -> Any:
    """What gather and read give for a single tensor, in a third of the time; None if no kernel
    takes it."""
    kernels = _kernels()
    return kernels.read_one(tensor) if kernels is not None else None


def batches(tensors: list[Tensor], p: float = 2.0) -> list[tuple[Any, list[int]]]:
    """The tensors that kernels can take, by device, and those that they cannot; each batch with
    the places of its tensors."""
    found: list[tuple[Any, list[int]]] = []
    rest = list(range(len(tensors)))
    while rest and len(batch := gather([tensors[i] for i in rest], False, p)):
        found.append((batch, [rest[i] for i in batch.places]))
        rest = [rest[i] for i, _ in batch.others]
    last = Formulas([tensors[i] for i in rest])
    if last.others:
        dtypes = ", ".join(sorted({str(tensor.dtype) for _, tensor in last.others}))
        raise TypeError(
            f"expected float64, float32, float16, bfloat16 or complex tensors, got {dtypes}: "
            "convert them"
        )
    return [*found, (last, rest)] if rest else found


def changed(batch: Any, change: Callable[[Any], None]) -> None:
    """change(batch), in place; for autograd too."""
    with torch.no_grad():
        change(batch)
    if not isinstance(batch, Formulas):
        torch.autograd.graph.increment_version(batch.tensors)


def clip_in_place(tensors: list[Tensor], min: float, max: float, nan: float) -> None:
    """By kernels, unless a tracer would miss them."""
    eager = all(readable(tensor, anywhere=True) for tensor in tensors)
    for batch in [batch for batch, _ in batches(tensors)] if eager else [Formulas(tensors)]:
        changed(batch, lambda batch: batch.clip(min, max, nan))


def read(batch: Any, p: float, detailed: bool) -> Any:
    """An object with total() and rows(), by the p-norm; with every column only if detailed."""
    if isinstance(batch, Formulas):
        return Table(batch.tensors, p, detailed)
    columns = EVERY if detailed else EXTREMES if p in (0, math.inf) else NORM
    return batch.read(1 if p == 1 else 2, columns)


def row_of(numbers: Sequence[float], p: float) -> Row:
    """What the kernels have read as a row, for a norm that follows from the other columns."""
    row = Row(*numbers)
    if p not in (0, math.inf):
        return row
    bad = row.nan + row.posinf + row.neginf
    norm, exponent = math.frexp(row.largest if p else row.numel - row.zeros - bad)
    return row._replace(norm=norm, exponent=exponent)


class Copied:
    """What was read, as plain Python values."""

    def __init__(self, readings: Any):
        self.bad: bool = readings.bad
        self._rows, self._total = list(readings.rows()), tuple(readings.total())

    def rows(self) -> list[Sequence[float]]:
        return self._rows

    def total(self) -> Sequence[float]:
        return self._total
