"""The contract as code: how far a value or gradient is from it, in units in the last place.

Exact results come from mpmath for float64; for narrower types from float64 tensors, whose own
error is at most 2**-29 of their unit.
"""

import math

import mpmath
import torch

from safeops.testing import ulp_distance
from tests.cases import Options

mpmath.mp.prec = 200
MAX = mpmath.mpf(torch.finfo(torch.float64).max)


def finite(*tensors):
    """Where all of them are."""
    return torch.stack(torch.broadcast_tensors(*tensors)).isfinite().all(0)


def saturated(value, dtype, where):
    limit = torch.finfo(dtype).max
    where = torch.as_tensor(where)
    return torch.where(where, value.clamp(-limit, limit), value)


def value_errors(op, inputs, actual, options):
    """Distance of each value from the contract's, float64 ULPs."""
    o = Options(actual.dtype, **options)
    wide = [tensor.double() for tensor in inputs]
    guarded = op.guard(o, *wide)
    outside = _distance(actual, op.outside(o, *wide), finite(*wide))
    inside = _errors(actual, op.value, [torch.where(guarded, op.safe, tensor) for tensor in wide])
    return torch.where(guarded, outside, inside)


def gradient_errors(op, index, inputs, upstream, actual, options):
    """Distance of each gradient to input number index from the contract's, float64 ULPs."""
    o = Options(actual.dtype, **options)
    wide = [tensor.double() for tensor in inputs]
    g = upstream.double()
    guarded = op.guard(o, *wide)
    known = op.outside_gradients(o, g, *wide)[index]
    outside = _distance(actual, torch.where(g == 0, 0.0, known), finite(g, *wide))
    skip = guarded | (g == 0)
    regular = [torch.where(skip, safe, t) for safe, t in ((1.0, g), *((op.safe, t) for t in wide))]
    inside = _errors(actual, op.gradients[index], regular)
    inside = torch.where(beyond(op, index, regular, o.dtype), 0.0, inside)
    return torch.where(skip, outside, inside)


def beyond(op, index, tensors, dtype):
    """Where torch's order of the gradient leaves the normal range of the compute type on its way:
    there no more than a finite one is promised."""
    info = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32)
    gone = torch.zeros_like(tensors[0], dtype=torch.bool)
    for step in op.steps(index, *tensors):
        gone |= ~((step.abs() >= info.smallest_normal) & (step.abs() <= info.max))
    return gone


def expected_half(op, inputs, options, dtype):
    """The exact value rounded to float32, then to the half type."""
    o = Options(dtype, **options)
    wide = [tensor.double() for tensor in inputs]
    guarded = op.guard(o, *wide)
    inside = op.value(torch, *[torch.where(guarded, op.safe, tensor) for tensor in wide])
    value = torch.where(guarded, op.outside(o, *wide), inside)
    return saturated(value.float(), dtype, finite(*wide)).to(dtype)


def _distance(actual, expected, given):
    """Distance to the saturated result; where an input (not given) was not finite, saturating or
    not are both right. Non-finite is non-finite: whether inf * 0 is inf or NaN is left open."""
    limited = ulp_distance(actual, saturated(expected, actual.dtype, True))
    both = ~actual.isfinite() & ~expected.to(actual.dtype).isfinite()
    unsaturated = torch.where(both, 0.0, ulp_distance(actual, expected))
    return torch.minimum(limited, torch.where(given, math.inf, unsaturated))


def _errors(actual, formula, wide):
    distance = _distance(actual, formula(torch, *wide), finite(*wide))
    if actual.dtype is not torch.float64:
        return distance
    points = zip(actual.tolist(), *(tensor.tolist() for tensor in wide), strict=True)
    errors = [_error(formula, *point) for point in points]
    return torch.where(finite(*wide), torch.tensor(errors, dtype=torch.float64), distance)


def _error(formula, actual, *point):
    if not all(map(math.isfinite, point)):
        return math.inf
    exact = formula(mpmath, *map(mpmath.mpf, point))
    exact = max(-MAX, min(MAX, exact))
    if not math.isfinite(actual):
        return math.inf
    return float(abs(actual - exact) / mpmath.ldexp(1, _unit(exact)))


def _unit(exact):
    return max(int(mpmath.mag(exact)) - 53, -1074) if exact else -1074
