"""What is kept of a monitored step: a few numbers for each layer."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._lots import Lots
from ..._multi_tensor import read_one
from ..._ranks import is_sharded
from ..._route import DTYPES, readable
from ..._statistics import Row, joined, scaled

KINDS = ("activation", "gradient")
_DTYPES = frozenset((*DTYPES, torch.complex64, torch.complex128))
_WIDTH = len(Row._fields) + 1  # a row, and the headroom


class LayerStats(NamedTuple):
    """One layer in one step: what its outputs hold, or the gradients with respect to them.

    largest and rms are of the finite elements; zeros and subnormal are shares of all elements;
    headroom is the distance to overflow, log2(finfo.max / largest), in octaves.
    """

    layer: str
    kind: str
    largest: float
    rms: float
    zeros: float
    subnormal: float
    headroom: float
    nan: int
    inf: int

    @property
    def bad(self) -> int:
        """How many elements are NaN or infinite."""
        return self.nan + self.inf


COLUMNS = LayerStats._fields[2:]


def verdict_on(read: Sequence[tuple[int, LayerStats]]) -> str:
    """Where it was not finite first, or else how near the nearest came to overflow."""
    if not read:
        return "no layer ran"
    for step, stats in read:
        if stats.bad:
            place = f"step {step}, in the {stats.kind} of {stats.layer}"
            return f"not finite since {place} ({stats.nan} NaN, {stats.inf} Inf)"
    step, stats = min(read, key=lambda pair: pair[1].headroom)
    return (
        f"all finite, at least {stats.headroom:.1f} octaves from overflow "
        f"({stats.kind} of {stats.layer}, step {step})"
    )


class Step:
    """One forward of the model and the backward through it. No tensor is kept: readings of a GPU
    wait there until something is looked at."""

    def __init__(self, number: int, layers: int):
        self.number, self.layers = number, layers
        self._numbers = array("d", bytes(8 * _WIDTH * layers * len(KINDS)))
        self._waiting: list[tuple[int, Any, torch.dtype]] = []

    def read(self, place: int, tensor: Tensor) -> None:
        """One more tensor of a place; those of one place are joined."""
        readings = read_one(tensor)
        for one in [readings] if readings is not None else _readings(tensor):
            if one.on_gpu or not tensor.is_cpu:
                self._waiting.append((place, one, tensor.dtype))
            else:
                self._add(place, one.total(), tensor.dtype)

    def settle(self) -> None:
        """Bring to the host what waits on a GPU."""
        waiting, self._waiting = self._waiting, []
        for place, readings, dtype in waiting:
            self._add(place, readings.total(), dtype)

    def _add(self, place: int, numbers: Any, dtype: torch.dtype) -> None:
        row, largest = numbers, numbers[2]
        headroom = _octaves(dtype) - math.log2(largest) if largest else math.inf
        start, end = place * _WIDTH, place * _WIDTH + _WIDTH
        before = self._numbers[start:end]
        if before[-3]:  # numel
            row = joined([Row(*before[:-1]), Row(*numbers)], 2.0)
            headroom = min(headroom, before[-1])
        self._numbers[start:end] = array("d", (*row, headroom))

    def stats(self, place: int, layer: str) -> LayerStats | None:
        """None if nothing was read."""
        *numbers, headroom = self._numbers[place * _WIDTH : (place + 1) * _WIDTH]
        row = Row(*numbers)
        if not row.numel:
            return None
        inf = row.posinf + row.neginf
        finite = row.numel - row.nan - inf
        rms = scaled(row.norm / math.sqrt(finite), row.exponent) if finite else math.nan
        shares = row.zeros / row.numel, row.subnormal / row.numel
        kind = KINDS[place // self.layers]
        return LayerStats(layer, kind, row.largest, rms, *shares, headroom, int(row.nan), int(inf))


@cache
def _octaves(dtype: torch.dtype) -> float:
    return math.log2(torch.finfo(dtype).max)


def _readings(tensor: Tensor) -> list[Any]:
    """Of what no kernel takes; without the tensor."""
    return [lot.readings for lot in Lots([tensor.detach()], detailed=True).lots]


def is_watched(value: Any) -> bool:
    """A tensor with values: no fake one, none inside of a transform or trace."""
    if not isinstance(value, Tensor) or value.dtype not in _DTYPES or value.is_meta:
        return False
    return readable(value, anywhere=True) or is_sharded(value)
