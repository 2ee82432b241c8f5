"""Half types of the row ops: the float32 result, rounded once."""

import pytest
import torch

from safeops.testing import all_values, ulp_distance
from tests.cases import HALF
from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.row_oracle import (
    allowed,
    assert_within,
    exact_gradient,
    exact_value,
    gradient_errors,
    mask_rows,
    result_rows,
    rows_of,
    value_errors,
)
from tests.row_samples import AXES, KINDS, along, normal, of_kind, random_mask
from tests.samples import label, shuffle

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_half = pytest.mark.parametrize("dtype", HALF, ids=label)
each_axis = pytest.mark.parametrize("axis", AXES)


@each_op
@each_axis
@each_half
def test_value(any_route, op, axis, dtype):
    """Within half a unit, and what float32 is off by."""
    for kind in KINDS:
        x, dim = along(axis, of_kind(kind, 4, 500, dtype))
        value = any_route.value(op, [x], dim=dim)
        assert_within(value_errors(op, x, dim, None, value), allowed(any_route, x, dim), kind)


@each_op
@each_axis
@each_half
def test_value_is_rounded_once(any_route, op, axis, dtype):
    """Correctly, but where the float32 error moves it over the middle of two numbers: one unit off
    then, and rarely. float16 has 13 bits less than float32: two units of error there move one
    result in 2048."""
    x, dim = along(axis, normal(4000, 24).to(dtype) * 2)
    value = result_rows(op, any_route.value(op, [x], dim=dim), dim, x).to(dtype)
    exact = exact_value(op, rows_of(x.double(), dim), mask_rows(None, dim, x), dtype).value
    distance = ulp_distance(value, exact.to(dtype))
    assert distance.max() <= 1
    assert (distance > 0).double().mean() <= 1 / 1024


@each_op
@each_axis
@each_half
def test_gradient_is_rounded_once(route, op, axis, dtype):
    """That of the rounded result, which is what backward has."""
    for kind in KINDS:
        x, dim = along(axis, of_kind(kind, 6, 300, dtype))
        upstream = torch.randn(x.shape).to(dtype)
        upstream = upstream.select(dim, 0) if op.reduces else upstream
        value, (gradient,) = route.both(op, [x], upstream, dim=dim)
        errors = gradient_errors(op, x, dim, None, value, upstream, gradient)
        assert_within(errors, allowed(route, x, dim), kind)


@each_half
def test_every_pair_with_zero(any_route, dtype):
    """All 65,536 numbers beside a 0: NaN and the infinities too."""
    x = torch.stack([all_values(dtype), torch.zeros(2**16, dtype=dtype)], 1)
    for op in ROW_OPS:
        value = any_route.value(op, [x], dim=-1)
        assert_within(value_errors(op, x, -1, None, value), allowed(any_route, x, -1), op.name)


@each_half
def test_every_number_in_one_row(any_route, dtype):
    """Far apart as they are, only the largest few count."""
    x = all_values(dtype)
    x = shuffle(x[x.isfinite()], 3)[None]
    for op in ROW_OPS:
        value, (gradient,) = any_route.both(op, [x], dim=-1)
        assert_within(value_errors(op, x, -1, None, value), allowed(any_route, x, -1), op.name)
        assert gradient.isfinite().all()


@each_op
@each_half
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 255, 4097])
def test_is_float32_converted(kernel, op, dtype, n):
    """The same kernel works on the numbers as float32: its result there, rounded."""
    x, mask = normal(4, n).to(dtype) * 3, random_mask(4, n)
    wide = kernel.value(op, [x.float()], dim=-1, mask=mask)
    assert torch.equal(kernel.value(op, [x], dim=-1, mask=mask), wide.to(dtype))


@each_half
@pytest.mark.parametrize("op", [SOFTMAX, LOG_SOFTMAX], ids=label)
def test_sum_of_many_small_ones(any_route, op, dtype):
    """In the half type it would stop growing at 256 or 2048."""
    x = torch.zeros(2, 10_000, dtype=dtype)
    exact = exact_value(op, x.double(), mask_rows(None, -1, x), dtype).value
    assert torch.equal(any_route.value(op, [x], dim=-1), exact.to(dtype))


@each_half
def test_overflow_of_the_sum(any_route, dtype):
    """logsumexp at the end of the range saturates; in the middle of the sum nothing overflows."""
    limit = torch.finfo(dtype).max
    x = torch.full((2, 100), limit, dtype=dtype)
    value, (gradient,) = any_route.both(LOGSUMEXP, [x], dim=-1)
    assert torch.equal(value, x[:, 0])
    assert gradient.isfinite().all()


@each_half
def test_gradient_of_softmax_sums_to_zero(route, dtype):
    """As far as its elements are rounded."""
    x, upstream = normal(8, 500).to(dtype), torch.randn(8, 500).to(dtype)
    value, (gradient,) = route.both(SOFTMAX, [x], upstream, dim=-1)
    exact = exact_gradient(
        SOFTMAX, x.double(), mask_rows(None, -1, x), value.double(), upstream.double(), dtype
    )
    drift = (gradient.double().sum(-1) - exact.value.sum(-1)).abs()
    assert (drift <= exact.unit.sum(-1)).all()
