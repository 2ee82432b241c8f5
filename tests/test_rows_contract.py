"""The contract of the row ops, V1-V4 and G1-G4, over all rows of special values under all masks."""

import math

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import ROW_OPS
from tests.row_oracle import (
    assert_within,
    gradient_errors,
    kept,
    value_errors,
)
from tests.row_samples import masked_specials, normal, specials
from tests.samples import label, upstreams

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)


@each_op
@each_dtype
def test_every_row_of_special_values(any_route, op, dtype):
    """Under every mask. Values and signs of infinities count, the bits of a NaN do not."""
    x, mask = masked_specials(dtype)
    value = any_route.value(op, [x], dim=-1, mask=mask)
    assert_within(value_errors(op, x, -1, mask, value, precise=False), 1.5, op.name)


def upstreams_of(op, x):
    """Ones, ordinary ones, and wild ones with zeros, inf and NaN."""
    whole = upstreams(x.flatten())
    return [g.view_as(x)[:, 0] if op.reduces else g.view_as(x) for g in whole]


@each_op
@each_dtype
def test_gradient_of_every_row_of_special_values(route, op, dtype):
    x, mask = masked_specials(dtype)
    for upstream in upstreams_of(op, x):
        value, (gradient,) = route.both(op, [x], upstream, dim=-1, mask=mask)
        errors = gradient_errors(op, x, -1, mask, value, upstream, gradient)
        open_ = ~upstream.isfinite() if op.reduces else ~upstream.isfinite().all(-1)
        errors = torch.where(open_[:, None] & ~gradient.isfinite(), 0.0, errors)
        assert_within(errors, 2, op.name)


@each_op
@each_dtype
def test_gradient_of_the_composite(composite, op, dtype):
    """As the eager one; 0 at +inf, where only logsumexp has a derivative; at NaN left open."""
    x, mask = masked_specials(dtype)
    top = kept(x.double(), mask)[1].squeeze(-1)
    x, mask = x[~top.isnan()], mask[~top.isnan()]
    for upstream in upstreams_of(op, x)[:2]:
        (gradient,) = composite.gradients(op, [x], upstream, dim=-1, mask=mask)
        infinite = (kept(x.double(), mask)[1] == math.inf) & (not op.reduces)
        assert (gradient[infinite.squeeze(-1)] == 0).all()
        errors = gradient_errors(op, x, -1, mask, None, upstream, gradient)
        assert_within(errors.masked_fill(infinite, 0), 3, op.name)


@each_op
@each_dtype
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_upstream_gives_zero(any_route, op, dtype, zero):
    """G1, row by row: the last row's own gradient is not."""
    x, mask = masked_specials(dtype)
    x, mask = torch.cat([x, x.new_tensor([[1, 2, 3]])]), torch.cat([mask, mask[:1]])
    upstream = torch.full_like(x[:, 0] if op.reduces else x, zero)
    upstream[-1:] = torch.arange(1.0, upstream[-1:].numel() + 1)
    (gradient,) = any_route.gradients(op, [x], upstream, dim=-1, mask=mask)
    assert (gradient[:-1] == 0).all()
    assert (gradient[-1] != 0).all()


# upstream gradients of size finfo.max: the sign of element i
SIGNS = {
    "positive": lambda i: i * 0 + 1,
    "negative": lambda i: i * 0 - 1,
    "alternating": lambda i: 1 - 2 * (i % 2),
    "one negative": lambda i: 1 - 2 * (i == 1).long(),
    "two": lambda i: (i == 0).long() - (i == 2).long(),
}


@each_op
@each_dtype
@pytest.mark.parametrize("sign", SIGNS)
def test_finite_in_gives_finite_gradients(route, op, dtype, sign):
    """G2: also where products and sums of upstream gradients overflow on the way."""
    few = specials(dtype)
    few = few[few.isfinite().all(-1)]
    for x in (few, few.repeat(1, 11), normal(4, 1000).to(dtype)):
        signs = SIGNS[sign](torch.arange(x.shape[1])).to(dtype)
        upstream = (signs * torch.finfo(dtype).max).expand_as(x)
        upstream = upstream[:, 0] if op.reduces else upstream
        value, (gradient,) = route.both(op, [x], upstream, dim=-1)
        assert gradient.isfinite().all()
        if dtype is not torch.float64:
            errors = gradient_errors(op, x, -1, None, value, upstream, gradient)
            assert_within(errors, 2, op.name)


@each_op
@each_dtype
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_bad_upstream_passes(any_route, op, dtype, bad):
    """G4: at the element itself at least, in every row that is not guarded."""
    x = normal(4, 40).to(dtype)
    upstream = torch.ones_like(x[:, 0] if op.reduces else x)
    (upstream if op.reduces else upstream[:, 7])[2] = bad
    (gradient,) = any_route.gradients(op, [x], upstream, dim=-1)
    wrong = ~gradient.isfinite()
    assert wrong[2, 7]
    assert not wrong[[0, 1, 3]].any()
