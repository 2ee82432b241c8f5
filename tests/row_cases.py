"""One row a row op: all that a test has to know about it. ROW_OPS is the list.

The formulas are written once, for mpmath and for float64 tensors. top is the maximum of a row, gap
an element's x - top, e its exp, total the sum of those and log its logarithm, y the softmax.
u is eps / 2 of the compute type: the relative error of one rounding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

import safeops
from safeops.testing import ulp
from tests.cases import tiny


@dataclass(frozen=True)
class RowOp:
    """name: the public one, the raw op's and torch's.
    value: exact, (gap, e, top, total, log).
    gradient: exact, (g, y, dot, whole): dot is the sum of g * y, whole that of g.
    weights: y of the op's own rounded result, (result, y).
    value_unit: how far a value may be off, (u, value, gap, total).
    gradient_unit: the same of a gradient, in u, (g, y, dot, whole, sizes, slack): sizes are dot and
        whole of the magnitudes, slack is what y is off by.
    outside: the value at masked elements and of guarded rows.
    keeps_result: what backward needs is the result, not the input.
    reduces: a row gives one value.
    """

    name: str
    value: Callable
    gradient: Callable
    weights: Callable
    value_unit: Callable
    gradient_unit: Callable
    outside: float
    keeps_result: bool = True
    reduces: bool = False

    @property
    def raw(self):
        return self.name

    @property
    def backward(self):
        return f"{self.name}_backward"

    @property
    def function(self):
        return getattr(safeops, self.name)

    @property
    def torch(self):
        return getattr(torch, self.name)


def _dtype(u):
    return torch.float64 if u < 2**-30 else torch.float32


def _half_ulp(x, u):
    """What rounding to x is off by at most; 0 for an infinity, which is exact."""
    return torch.where(x.isfinite(), ulp(x, _dtype(u)) / 2, 0.0)


def _softmax_unit(u, value, gap, total):
    """exp of a rounded difference, and 4 roundings' worth: exp (2), total and the quotient."""
    return value * (4 * u + _half_ulp(gap, u)) + tiny(_dtype(u))


def _log_softmax_unit(u, value, gap, total):
    """Two differences, and log(total), in which total's relative error is absolute."""
    return _half_ulp(gap, u) + _half_ulp(value, u) + _log_unit(u, total)


def _logsumexp_unit(u, value, gap, total):
    return _half_ulp(value, u) + _log_unit(u, total)


def _log_unit(u, total):
    return 2 * _half_ulp(total.log(), u) + 2 * u


def _softmax_gradient_unit(g, y, dot, whole, sizes, slack):
    own = (2 + slack) * (g - dot).abs() + 2 * sizes[0]
    return y * (own + (g * y * slack).abs().sum(-1, keepdim=True))


def _log_softmax_gradient_unit(g, y, dot, whole, sizes, slack):
    return (g - y * whole).abs() + y * ((3 + slack) * whole.abs() + 2 * sizes[1])


def _logsumexp_gradient_unit(g, y, dot, whole, sizes, slack):
    return (g * y).abs() * (1 + slack)


ROW_OPS = (
    RowOp(
        name="softmax",
        value=lambda gap, e, top, total, log: e / total,
        gradient=lambda g, y, dot, whole: y * (g - dot),
        weights=lambda result, y: result,
        value_unit=_softmax_unit,
        gradient_unit=_softmax_gradient_unit,
        outside=0.0,
    ),
    RowOp(
        name="log_softmax",
        value=lambda gap, e, top, total, log: gap - log,
        gradient=lambda g, y, dot, whole: g - y * whole,
        weights=lambda result, y: result.exp(),
        value_unit=_log_softmax_unit,
        gradient_unit=_log_softmax_gradient_unit,
        outside=-math.inf,
    ),
    RowOp(
        name="logsumexp",
        value=lambda gap, e, top, total, log: top + log,
        gradient=lambda g, y, dot, whole: g * y,
        weights=lambda result, y: y,
        value_unit=_logsumexp_unit,
        gradient_unit=_logsumexp_gradient_unit,
        outside=-math.inf,
        keeps_result=False,
        reduces=True,
    ),
)

ROW_OP = {op.name: op for op in ROW_OPS}
SOFTMAX, LOG_SOFTMAX, LOGSUMEXP = ROW_OPS
