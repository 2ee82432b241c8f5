"""The contract of the row ops as code: exact results, and how far an actual one is from them.

Everything here takes rows, (rows, elements) in float64, and a bool mask of the same shape; rows_of
makes them of a tensor. For float64 results the exact ones come from mpmath, as a sum of two
float64; float64 tensors are exact enough for narrower types.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import torch

from safeops.testing import ulp
from tests.cases import HALF, tiny
from tests.oracle import MAX
from tests.row_cases import SOFTMAX


def dims_of(dim, x):
    """The dims as a tuple of positive numbers."""
    return tuple(d % max(x.dim(), 1) for d in ((dim,) if isinstance(dim, int) else dim))


def rows_of(x, dim, like=None):
    """x, broadcast to like, as rows: the dims of each row moved to the end and made one."""
    x = x if like is None else x.expand(like.shape)
    if x.dim() == 0:
        return x.reshape(1, 1)
    dims = dims_of(dim, x)
    moved = x.movedim(dims, tuple(range(-len(dims), 0)))
    return moved.reshape(-1, math.prod(x.shape[d] for d in dims))


def kept(x, mask):
    """What takes part: -inf elsewhere; in a row with k times +inf those are k equal elements."""
    taken = torch.where(mask, x, -math.inf)
    top = taken.amax(-1, keepdim=True)
    ties = torch.where(taken == math.inf, 0.0, -math.inf)
    return torch.where(top == math.inf, ties, taken), top


@dataclass(frozen=True)
class Exact:
    """value + rest is exact; unit is what an actual value may be off by."""

    value: torch.Tensor
    rest: torch.Tensor
    unit: torch.Tensor

    def errors(self, actual):
        """In units; 0 where both are the same infinity or NaN, inf where only one is."""
        actual = actual.double()
        same = (actual == self.value) | (actual.isnan() & self.value.isnan())
        off = ((actual - self.value) - self.rest).abs() / self.unit
        finite = actual.isfinite() & self.value.isfinite()
        exact = same & ((self.rest == 0) | ~finite)
        return torch.where(exact, 0.0, torch.where(finite, off, math.inf))


def compute_type(dtype):
    return torch.float32 if dtype in HALF else dtype


def rounding(dtype):
    """The relative error of one rounding in the compute type."""
    return torch.finfo(compute_type(dtype)).eps / 2


def exact_value(op, x, mask, dtype, precise=None):
    """What the op gives for these rows, in the dtype: saturated, not rounded."""
    taken, top = kept(x, mask)
    shift = torch.where(top.isfinite(), top, 0.0)
    gap = taken - shift
    total = gap.exp().sum(-1, keepdim=True)
    value = op.value(gap, gap.exp(), shift, total, total.log())
    rest = torch.zeros_like(value)
    if dtype is torch.float64 and precise is not False:
        value, rest = _by_mpmath(op, taken, top, value)
    unit = op.value_unit(rounding(dtype), _plain(value), gap, _plain(total))
    value = _saturated(op, value, taken, top, dtype)
    return Exact(_outside(op, value, mask, top), rest, _rounded_too(unit, value, dtype))


def _plain(tensor):
    """Numbers only, for the units; where there is none the unit does not matter."""
    return torch.where(tensor.isfinite() & (tensor != 0), tensor, 1.0)


def _saturated(op, value, taken, top, dtype):
    limit = torch.finfo(dtype).max
    finite = top.isfinite() if op.reduces else top.isfinite() & taken.isfinite()
    return torch.where(finite, value.clamp(-limit, limit), value)


def _outside(op, value, mask, top):
    if op.reduces:
        return torch.where(top == math.inf, math.inf, value)
    guarded = top == -math.inf
    return torch.where(guarded | ~mask, op.outside, value)


def _rounded_too(unit, value, dtype):
    """Half types are rounded once more: half a unit of theirs."""
    return unit + 0.5 * ulp(value, dtype) if dtype in HALF else unit


def _by_mpmath(op, taken, top, value):
    """The same as two float64 tensors, for the rows with a finite maximum."""
    value, rest = value.clone(), torch.zeros_like(value)
    for i in top.isfinite().flatten().nonzero().flatten().tolist():
        pairs = [_split(number) for number in _row_by_mpmath(op, tuple(taken[i].tolist()))]
        value[i], rest[i] = torch.tensor(pairs, dtype=torch.float64).T
    return value, rest


def _row_by_mpmath(op, row):
    gaps, exponentials, *rest = _measured(row)
    pairs = zip(gaps, exponentials, strict=True)
    values = [op.value(gap, e, *rest) for gap, e in (list(pairs)[:1] if op.reduces else pairs)]
    return [v if v == -mpmath.inf else max(-MAX, min(MAX, v)) for v in values]


@lru_cache(maxsize=4000)
def _measured(row):
    """gaps, exponentials, top, total and its logarithm; the three ops take the same rows."""
    numbers = [mpmath.mpf(number) for number in row]
    top = max(numbers)
    gaps = [number - top for number in numbers]
    exponentials = [mpmath.exp(gap) for gap in gaps]
    total = mpmath.fsum(exponentials)
    return gaps, exponentials, top, total, mpmath.log(total)


def _split(number):
    near = float(number)
    return near, float(number - near) if math.isfinite(near) else 0.0


def exact_gradient(op, x, mask, result, g, dtype):
    """What the gradient formula gives, saturated, not rounded. Of the ops that keep their result:
    for that rounded one, unless it is None."""
    y = exact_value(SOFTMAX, x, mask, dtype, precise=False).value
    y = y if result is None else torch.where(mask, op.weights(result, y), 0.0)
    taken = torch.where(mask, g, 0.0)
    products = taken * y
    sums = products.sum(-1, keepdim=True), taken.sum(-1, keepdim=True)
    sizes = [t.abs().sum(-1, keepdim=True) for t in (products, taken)]
    value = op.gradient(taken, y, *sums)
    known = result is not None and op.keeps_result
    slack = torch.zeros_like(y) if known else 4 + _gap(x, mask, dtype)
    unit = rounding(dtype) * op.gradient_unit(taken, y, *sums, sizes, slack)
    limit = torch.finfo(dtype).max
    value = torch.where(taken.isfinite().all(-1, keepdim=True), value.clamp(-limit, limit), value)
    value = torch.where(without_gradient(op, x, mask, taken), 0.0, value)
    unit = _rounded_too(unit, value, dtype) + tiny(dtype)
    return Exact(value, torch.zeros_like(value), unit)


def _gap(x, mask, dtype):
    """What rounding an element's distance from the top is off by, in units of one rounding."""
    taken, top = kept(x, mask)
    gap = torch.where((taken - top).isfinite(), taken - top, 0.0)
    return ulp(gap, compute_type(dtype)) / torch.finfo(compute_type(dtype)).eps


def without_gradient(op, x, mask, taken):
    """Masked elements, guarded rows, and rows whose upstream gradient is zero (G1)."""
    guarded = kept(x, mask)[1] == -math.inf
    return ~mask | guarded | (taken == 0).all(-1, keepdim=True)


def result_rows(op, tensor, dim, x):
    """A result, or what has its shape, as rows of x."""
    return tensor.double().reshape(-1, 1) if op.reduces else rows_of(tensor.double(), dim)


def mask_rows(mask, dim, x):
    return rows_of(torch.ones((), dtype=torch.bool) if mask is None else mask, dim, like=x)


def value_errors(op, x, dim, mask, value, precise=None):
    """Of every value, in units of what it may be off by."""
    exact = exact_value(op, rows_of(x.double(), dim), mask_rows(mask, dim, x), x.dtype, precise)
    return exact.errors(result_rows(op, value, dim, x))


def gradient_errors(op, x, dim, mask, value, upstream, gradient):
    """Of every element of the gradient, in units of what it may be off by. value None: it was
    not made of a rounded one."""
    tensors = [t if t is None else result_rows(op, t, dim, x) for t in (value, upstream)]
    exact = exact_gradient(op, rows_of(x.double(), dim), mask_rows(mask, dim, x), *tensors, x.dtype)
    return exact.errors(rows_of(gradient.double(), dim))


def assert_within(errors, bound, what=""):
    """Fails with the worst error and where it is."""
    if errors.numel() and not errors.max() <= bound:
        row, element = divmod(int(errors.argmax()), errors.shape[1])
        many = int((~(errors <= bound)).sum())
        raise AssertionError(
            f"{what}: {many} of {errors.numel()} beyond {bound}, the worst {errors.max():.3f} "
            f"in row {row}, element {element}"
        )


def allowed(route, x, dim):
    """How many units a result may be off by: each holds what cannot be avoided, and the sum over
    a row adds to that, at random, as many roundings as one number of it goes through: in the
    kernels those of one of 16 lanes of a chunk, or of a column of a block."""
    dims = dims_of(dim, x)
    n = math.prod(x.shape[d] for d in dims) if x.dim() else 1
    if route.name != "kernel":
        return 4.0 + n**0.5
    chunk = min(n, 2048)
    return 2.0 + 0.75 * (chunk / 16 if dims[-1] == x.dim() - 1 else chunk) ** 0.5


def assert_close(ours, theirs):
    """A few units: another way through memory may be another order of adding."""
    for actual, expected in zip(ours, theirs, strict=True):
        eps = 64 * torch.finfo(expected.dtype).eps
        torch.testing.assert_close(actual, expected, rtol=eps, atol=eps, equal_nan=True)
