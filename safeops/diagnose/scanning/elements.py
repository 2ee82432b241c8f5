"""What the elements of a tensor are: how many are NaN, infinite, subnormal, 0, and the extremes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._multi_tensor import gather, read
from ..._statistics import Row

BLOCK = 256 << 10  # bytes of which the extremes are looked for, or not
SIGN = -(1 << 63)
LARGEST = Row._fields.index("largest")


@dataclass
class Elements:
    """Counts and finite extremes; of integers the extremes only, of complex numbers those of the
    real and imaginary parts together."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    subnormal: int = 0
    zeros: int = 0
    integers: bool = False  # then the counts say nothing
    min: float = math.inf
    max: float = -math.inf

    def add(self, flat: Tensor) -> None:
        """Some more elements."""
        if flat.is_complex():
            flat = torch.view_as_real(flat).flatten()
        if not flat.is_floating_point():
            self.integers = True
            self._reach(*_ends_of_integers(flat))
        elif flat.element_size() == 1:
            self._add_bytes(flat)
        else:
            self._add_floats(flat)

    def _reach(self, low: float, high: float) -> None:
        self.min, self.max = min(self.min, low), max(self.max, high)

    def _add_floats(self, flat: Tensor) -> None:
        blocks = flat.chunk(math.ceil(flat.nbytes / BLOCK))
        readings = read(gather(list(blocks)), 2.0, True)
        total = Row(*readings.total())
        self.nan += int(total.nan)
        self.posinf += int(total.posinf)
        self.neginf += int(total.neginf)
        self.subnormal += int(total.subnormal)
        self.zeros += int(total.zeros)
        sizes = [row[LARGEST] for row in readings.rows()]
        for largest, place in sorted(zip(sizes, range(len(sizes)), strict=True), reverse=True):
            if largest <= min(-self.min, self.max):
                break  # neither this block nor those that follow hold an end
            self._look_for_ends(blocks[place], largest, bool(total.bad))

    def _look_for_ends(self, block: Tensor, largest: float, bad: bool) -> None:
        """In floats of which that is the largest finite magnitude: one end has it."""
        block = block[block.isfinite()] if bad else block
        if block.numel():
            low = _quick(block, "min").item()
            self._reach(low, largest if low > -largest else _quick(block, "max").item())

    def _add_bytes(self, flat: Tensor) -> None:
        """Of float8: how often each of the 256 values is there tells everything."""
        values = torch.arange(256, dtype=torch.uint8).view(flat.dtype).double()
        times = torch.bincount(flat.view(torch.uint8), minlength=256)
        tiny = torch.finfo(flat.dtype).tiny
        small = (values.abs() < tiny) & (values != 0)
        for name, where in {
            "nan": values.isnan(),
            "posinf": values == math.inf,
            "neginf": values == -math.inf,
            "subnormal": small,
            "zeros": values == 0,
        }.items():
            setattr(self, name, getattr(self, name) + int(times[where].sum()))
        there = values[(times > 0) & values.isfinite()]
        if there.numel():
            self._reach(there.min().item(), there.max().item())


def _quick(x: Tensor, end: str) -> Tensor:
    """min or max in the way that is twice as fast, which depends on the dtype."""
    return getattr(x, end if x.element_size() == 2 else f"a{end}")()


def _ends_of_integers(flat: Tensor) -> tuple[int, int]:
    """Unsigned integers of several bytes by the signed ones, since torch does not compare them."""
    if flat.dtype is torch.uint64:
        low, high = torch.aminmax(flat.view(torch.int64) ^ SIGN)
        return int(low) - SIGN, int(high) - SIGN
    wider = {torch.uint16: torch.int32, torch.uint32: torch.int64}.get(flat.dtype)
    low, high = torch.aminmax(flat if wider is None else flat.to(wider))
    return int(low), int(high)


def elements_of(chunks: Iterable[Tensor]) -> Elements:
    """All of them together."""
    found = Elements()
    for flat in chunks:
        if flat.numel():
            found.add(flat)
    return found
