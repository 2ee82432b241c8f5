"""Accuracy of the row ops: the bounds of row_cases.py, and never worse than torch."""

import pytest
import torch

from tests.cases import tiny
from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.row_oracle import (
    allowed,
    assert_within,
    exact_value,
    gradient_errors,
    mask_rows,
    result_rows,
    rows_of,
    value_errors,
)
from tests.row_samples import AXES, KINDS, along, normal, of_kind, random_mask
from tests.samples import label

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_kind = pytest.mark.parametrize("kind", KINDS)
each_wide = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
each_axis = pytest.mark.parametrize("axis", AXES)

# rows and their length; mpmath takes a while over float64
SIZES = {torch.float32: [(6, 5), (4, 100), (2, 777)], torch.float64: [(6, 5), (2, 101)]}


def laid(kind, dtype):
    """Rows of a kind, of every size, along every axis: x, dim."""
    for rows, n in SIZES[dtype]:
        x = of_kind(kind, rows, n, dtype)
        yield from (along(axis, x) for axis in AXES)


@each_op
@each_kind
@each_wide
def test_value(any_route, op, kind, dtype):
    for x, dim in laid(kind, dtype):
        value = any_route.value(op, [x], dim=dim)
        assert_within(value_errors(op, x, dim, None, value), allowed(any_route, x, dim), x.shape)


@each_op
@each_kind
@each_wide
def test_gradient(route, op, kind, dtype):
    for x, dim in laid(kind, dtype):
        upstream = torch.randn(x.shape, dtype=dtype)
        upstream = upstream.select(dim, 0) if op.reduces else upstream
        value, (gradient,) = route.both(op, [x], upstream, dim=dim)
        errors = gradient_errors(op, x, dim, None, value, upstream, gradient)
        assert_within(errors, allowed(route, x, dim), x.shape)


LONG = ["normal", "flat", "one large", "largest last", "ascending", "-inf first", "every size"]


@each_op
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("n", [4099, 131_072 + 5])
def test_long_rows(kernel, op, kind, n):
    """The bounds do not grow with the row: sums of a chunk go to float64."""
    x = of_kind(kind, 2, n, torch.float32)
    upstream = torch.randn(2, 1 if op.reduces else n).squeeze(-1)
    value, (gradient,) = kernel.both(op, [x], upstream, dim=-1)
    bound = allowed(kernel, x, -1)
    assert_within(value_errors(op, x, -1, None, value), bound, "value")
    assert_within(gradient_errors(op, x, -1, None, value, upstream, gradient), bound, "gradient")


def worst(op, x, dim):
    """The largest errors of safeops and of torch, in units."""
    mask = mask_rows(None, dim, x)
    exact = exact_value(op, rows_of(x.double(), dim), mask, x.dtype)
    results = (result_rows(op, function(x, dim), dim, x) for function in (op.function, op.torch))
    return [exact.errors(result).max().item() for result in results]


@each_op
@each_wide
@each_axis
@pytest.mark.parametrize("n", [5, 101, pytest.param(1500, marks=pytest.mark.slow)])
def test_not_worse_than_torch(kernel, op, dtype, axis, n):
    """Over all rows of each kind: within one unit, which chance decides, or not beyond torch.
    Half a unit more is one rounding, of a sum in another order."""
    worse = {}
    for kind in KINDS:
        rows = 8 if dtype is torch.float32 else 2
        ours, theirs = worst(op, *along(axis, of_kind(kind, rows, n, dtype)))
        if not ours <= max(theirs, 1.0) + 0.5:
            worse[kind] = round(ours, 2), round(theirs, 2)
    assert not worse


@each_wide
@each_axis
def test_softmax_sums_to_one(any_route, dtype, axis):
    """Within the elements' own bounds, each in proportion to its share."""
    for kind in KINDS:
        x, dim = along(axis, of_kind(kind, 4, 500, dtype))
        value = rows_of(any_route.value(SOFTMAX, [x], dim=dim).double(), dim)
        mask = mask_rows(None, dim, x)
        unit = exact_value(SOFTMAX, rows_of(x.double(), dim), mask, dtype, precise=False).unit
        off = (value.sum(-1) - 1).abs() / unit.sum(-1)
        assert off.max() <= allowed(any_route, x, dim), kind


@each_op
@each_axis
@pytest.mark.parametrize("shift", [1.0, -64.0, 4096.0])
def test_shift_invariance(any_route, op, axis, shift):
    """Numbers whose shifted ones are exact: the same bits (logsumexp: shifted)."""
    rows = (normal(6, 700) * 512).round().float() / 512
    x, dim = along(axis, rows)
    value, shifted = (any_route.value(op, [t], dim=dim) for t in (x, x + shift))
    if op.reduces:
        torch.testing.assert_close(shifted, value + shift, rtol=2.4e-7, atol=0)
    else:
        assert torch.equal(shifted, value)


@each_axis
@each_wide
def test_the_three_agree(any_route, axis, dtype):
    """softmax = exp(log_softmax), and log_softmax = x - logsumexp, under a mask too."""
    x, dim = along(axis, normal(6, 400).to(dtype) * 3)
    mask, _ = along(axis, random_mask(6, 400))
    y, log_y, total = (any_route.value(op, [x], dim=dim, mask=mask) for op in ROW_OPS)
    close = {"rtol": 40 * torch.finfo(dtype).eps, "atol": tiny(dtype)}
    torch.testing.assert_close(y, log_y.exp(), **close)
    torch.testing.assert_close(log_y[mask], (x - total.unsqueeze(dim))[mask], **close)


@each_op
@each_wide
def test_order_of_the_row(kernel, op, dtype):
    """Another order is another rounding, also of distances from the top, not another result."""
    x = normal(4, 3000).to(dtype) * 5
    order = torch.randperm(3000)
    value, other = (kernel.value(op, [t], dim=-1) for t in (x, x[:, order]))
    value = value if op.reduces else value[:, order]
    torch.testing.assert_close(other, value, rtol=64 * torch.finfo(dtype).eps, atol=tiny(dtype))


@pytest.mark.slow
@each_op
@each_wide
def test_many_rows(kernel, op, dtype):
    """Ten million elements, or a hundred thousand by mpmath, of every kind and many sizes."""
    for kind in KINDS:
        for n in (3, 33, 257, 1025, 5003):
            rows = max(2, (400_000 if dtype is torch.float32 else 4_000) // n)
            x = of_kind(kind, rows, n, dtype)
            value = kernel.value(op, [x], dim=-1)
            bound = allowed(kernel, x, -1)
            assert_within(value_errors(op, x, -1, None, value), bound, f"{kind} {n}")


@pytest.mark.parametrize("op", [LOG_SOFTMAX, LOGSUMEXP], ids=label)
@each_wide
def test_logarithms_near_zero(any_route, op, dtype):
    """One element far above: log(1 + tiny) is not lost by more than the last place of 1."""
    x = torch.zeros(1, 64, dtype=dtype)
    x[0, 5] = 12.0
    value = any_route.value(op, [x], dim=-1)
    assert_within(value_errors(op, x, -1, None, value), allowed(any_route, x, -1), op.name)
