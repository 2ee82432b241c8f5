"""What one read of a tensor tells, and how the readings of several are joined."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One tensor, or several joined. The p-norm of the finite elements is norm * 2**exponent with
    norm 0 or in [0.5, 1), so that it is exact beyond the range of a double."""

    norm: float = 0.0
    exponent: float = 0.0
    largest: float = 0.0  # finite magnitude
    nan: float = 0.0
    posinf: float = 0.0
    neginf: float = 0.0
    zeros: float = 0.0
    subnormal: float = 0.0  # not 0, and of a magnitude below finfo.tiny
    numel: float = 0.0
    bad: float = 0.0  # how many of the joined hold a NaN or an infinity

    @property
    def finite_norm(self) -> float:
        """The norm of the finite elements; inf beyond the range of a double."""
        return scaled(self.norm, self.exponent)

    @property
    def total_norm(self) -> float:
        """The norm of all elements, NaN and infinities included; NaN where it is only known that
        some are."""
        if self.bad:
            return math.nan if self.nan or not self.posinf + self.neginf else math.inf
        return self.finite_norm


def scaled(value: float, exponent: float) -> float:
    """value * 2**exponent, inf where that overflows."""
    try:
        return math.ldexp(value, int(exponent))
    except OverflowError:
        return math.inf


def joined(rows: Sequence[Row], p: float) -> Row:
    """The row of all elements together, by the p-norm; the order of the rows fixes the bits."""
    norm, exponent = joined_norms([row for row in rows if row.numel], p)
    counts = [sum(column) for column in zip(*(row[3:] for row in rows), strict=True)]
    return Row(norm, exponent, max((row.largest for row in rows), default=0.0), *counts)


def joined_norms(rows: Sequence[Row], p: float) -> tuple[float, float]:
    """The p-norm of the norms, in units of the one that matters most."""
    if p == 0:
        return math.frexp(sum(row.finite_norm for row in rows))
    norms = [(row.norm, row.exponent) for row in rows]
    unit, shift = (max if p > 0 else min)(norms, key=order, default=(0.0, 0.0))
    if math.isinf(p) or unit == 0.0 or len(norms) == 1:
        return unit, shift
    total = math.fsum(scaled(norm / unit, exponent - shift) ** p for norm, exponent in norms)
    norm, exponent = math.frexp(unit * root(total, p))
    return norm, exponent + shift


def root(value: float, p: float) -> float:
    """value ** (1 / p); the largest float where that overflows, for p near 0."""
    try:
        return math.sqrt(value) if p == 2 else value ** (1 / p)
    except OverflowError:
        return sys.float_info.max


def order(pair: tuple[float, float]) -> tuple[bool, float, float]:
    """The key that sorts pairs of norm and exponent by size."""
    norm, exponent = pair
    return norm > 0, exponent, norm
