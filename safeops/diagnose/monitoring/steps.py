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
    headroom is the distance to overflow, log2(finfo.max / largest), in octaves. Where no element is
    finite, largest, rms and headroom are NaN.
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


def verdict_on(steps: Sequence[Step], layers: Sequence[str]) -> str:
    """Where it was not finite first, or else how near the nearest came to overflow."""
    for one in steps:
        if culprit := one.culprit(layers):
            place = f"step {one.number}, in the {culprit.kind} of {culprit.layer}"
            return f"not finite, first in {place} ({culprit.nan} NaN, {culprit.inf} Inf)"
    read = [(one.number, stats) for one in steps for stats in one.table(layers)]
    if not read:
        return "no layer ran"
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
        self._waiting: list[tuple[int, int, Any, torch.dtype]] = []
        self._reads = 0
        self._bad_since = array("l", bytes(array("l").itemsize * layers * len(KINDS)))  # which read

    def read(self, place: int, tensor: Tensor) -> None:
        """One more tensor of a place; those of one place are joined."""
        self._reads += 1
        readings = read_one(tensor)
        for one in [readings] if readings is not None else _readings(tensor):
            if one.on_gpu or not tensor.is_cpu:
                self._waiting.append((place, self._reads, one, tensor.dtype))
            else:
                self._add(place, self._reads, one.total(), tensor.dtype)

    def settle(self) -> None:
        """Bring to the host what waits on a GPU."""
        waiting, self._waiting = self._waiting, []
        for place, when, readings, dtype in waiting:
            self._add(place, when, readings.total(), dtype)

    def _add(self, place: int, when: int, numbers: Any, dtype: torch.dtype) -> None:
        row, largest = numbers, numbers[2]
        if any(numbers[3:6]):  # nan, posinf, neginf
            self._bad_since[place] = min(when, self._bad_since[place] or when)
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
        largest, rms = row.largest, scaled(row.norm / math.sqrt(finite or 1), row.exponent)
        if not finite:
            largest = rms = headroom = math.nan
        shares = row.zeros / row.numel, row.subnormal / row.numel
        kind = KINDS[place // self.layers]
        return LayerStats(layer, kind, largest, rms, *shares, headroom, int(row.nan), int(inf))

    def table(self, layers: Sequence[str]) -> list[LayerStats]:
        """Of all that was read, activations first."""
        found = (self.stats(place, name) for place, name in enumerate([*layers] * len(KINDS)))
        return [stats for stats in found if stats is not None]

    def culprit(self, layers: Sequence[str]) -> LayerStats | None:
        """Where a NaN or an infinity was read first. Reads are in the order of execution: of the
        activations from the first layer on, then of the gradients from the last one back."""
        bad = [(when, place) for place, when in enumerate(self._bad_since) if when]
        place = min(bad)[1] if bad else 0
        return self.stats(place, layers[place % self.layers]) if bad else None


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
