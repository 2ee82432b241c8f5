"""Masks of the row ops: every shape and layout, and nothing under a mask is read."""

import math

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.row_oracle import allowed, assert_close, assert_within, gradient_errors, value_errors
from tests.row_samples import along, normal, random_mask, scores, upstream_like
from tests.samples import label

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
SHAPE = (2, 3, 5, 37)


def both(route, op, x, dim, mask, upstream):
    """Value and gradient in one list."""
    value, (gradient,) = route.both(op, [x], upstream, dim=dim, mask=mask)
    return [value, gradient]


def assert_same(route, ours, theirs):
    """The same bits; the formulas may take one or another of torch's own."""
    if route.name != "kernel":
        return assert_close(ours, theirs)
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


# shapes that broadcast to SHAPE: padding of a batch, attention's square, whole rows, ...
SHAPES = [
    (2, 3, 5, 37),
    (2, 1, 1, 37),
    (5, 37),
    (37,),
    (5, 1),
    (3, 1, 1),
    (1, 3, 5, 37),
    (2, 1, 5, 1),
    (2, 3, 1, 1),
    (1, 1, 1, 1),
    (1,),
    (),
]


@each_op
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_broadcast_is_the_expanded_mask(any_route, op, shape):
    """It is the mask of x's own shape; where it masks whole rows too."""
    x, mask = scores(*SHAPE), random_mask(*shape, share=0.6)
    whole = mask.expand(SHAPE).contiguous()
    for dim in (-4, -3, 2, 3):
        upstream = upstream_like(op, x, dim)
        ours = both(any_route, op, x, dim, mask, upstream)
        assert_close(ours, both(any_route, op, x, dim, whole, upstream))
        bound = allowed(any_route, x, dim)
        assert_within(value_errors(op, x, dim, mask, ours[0]), bound, f"value {dim}")
        kept = None if any_route.name == "composite" else ours[0]
        errors = gradient_errors(op, x, dim, mask, kept, upstream, ours[1])
        assert_within(errors, bound, f"gradient {dim}")


@each_op
@each_dtype
@pytest.mark.parametrize("axis", ["last", "first", "middle"])
def test_mask_is_minus_infinity(any_route, op, dtype, axis):
    """softmax(x, mask) is softmax(where(mask, x, -inf)) bit for bit, and so is its gradient."""
    for n in (1, 7, 37, 129, 1000, 4500):
        masks = random_mask(6, n)
        masks[2] = False
        assert_mask_is_minus_infinity(any_route, op, axis, normal(6, n).to(dtype) * 3, masks)


def assert_mask_is_minus_infinity(any_route, op, axis, rows, masks):
    (x, dim), (mask, _) = along(axis, rows), along(axis, masks)
    upstream = upstream_like(op, x, dim)
    filled = torch.where(mask, x, -math.inf)
    ours = both(any_route, op, x, dim, mask, upstream)
    expected = any_route.value(op, [filled], dim=dim)
    assert_same(any_route, ours[:1], [expected])
    if op is not LOG_SOFTMAX:  # there an element at -inf has its own upstream gradient
        assert_same(
            any_route,
            ours[1:],
            any_route.gradients(op, [filled], only_at(op, mask, upstream), dim=dim),
        )


def only_at(op, mask, upstream):
    return upstream if op.reduces else torch.where(mask, upstream, 0.0)


@each_op
@each_dtype
@pytest.mark.parametrize("axis", ["last", "first", "middle"])
def test_nothing_under_a_mask_is_read(any_route, op, dtype, axis):
    """Neither of x nor of the upstream gradient: the same bits as with zeros there."""
    rows, masks = normal(8, 300).to(dtype), random_mask(8, 300)
    masks[3], masks[4], masks[5, :299] = False, True, False
    (x, dim), (mask, _) = along(axis, rows), along(axis, masks)
    results = lambda filler: filled_under(any_route, op, x, dim, mask, filler)  # noqa: E731
    expected, limit = results(0.0), torch.finfo(dtype).max
    for garbage in (math.nan, math.inf, -math.inf, limit, -limit):
        ours = results(garbage)
        assert_same(any_route, ours, expected)
        assert (ours[1][~mask] == 0).all()
        assert op.reduces or (ours[0][~mask] == op.outside).all()


def filled_under(route, op, x, dim, mask, filler):
    """Value and gradient with this under the mask, of x and of upstream."""
    upstream = upstream_like(op, x, dim)
    upstream = upstream if op.reduces else torch.where(mask, upstream, filler)
    return both(route, op, torch.where(mask, x, filler), dim, mask, upstream)


@each_op
def test_a_nan_that_takes_part_leaves_masked_elements_alone(any_route, op):
    x, mask = scores(4, 50), random_mask(4, 50)
    mask[:, 7] = True
    x[1, 7] = math.nan
    value = any_route.value(op, [x], dim=-1, mask=mask)
    assert value[1].isnan().all() if op.reduces else torch.equal(value[1].isnan(), mask[1])
    assert not value[[0, 2, 3]].isnan().any()


@each_op
@each_dtype
def test_all_or_nothing(any_route, op, dtype):
    x = scores(6, 200, dtype=dtype)
    upstream = upstream_like(op, x, -1)
    expected = both(any_route, op, x, -1, None, upstream)
    for shape in ((6, 200), (200,), (1,), (), (6, 1)):
        ours = both(any_route, op, x, -1, torch.full(shape, True), upstream)
        assert_same(any_route, ours, expected)
        value, gradient = both(any_route, op, x, -1, torch.full(shape, False), upstream)
        assert (value == op.outside).all()
        assert (gradient == 0).all()


MASK_LAYOUTS = {
    "transposed": lambda m: m.transpose(0, -1).contiguous().transpose(0, -1),
    "inner transposed": lambda m: m.mT.contiguous().mT,
    "strided": lambda m: m.repeat_interleave(3, -1)[..., ::3],
    "every second row": lambda m: m.repeat_interleave(2, -2)[..., ::2, :],
    "sliced": lambda m: torch.nn.functional.pad(m, (1, 2))[..., 1:-2],
    "unaligned": lambda m: torch.cat([m.new_ones(1), m.flatten()])[1:].view_as(m),
    "permuted": lambda m: m.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
    "expanded": lambda m: m[:1, :1].expand_as(m),
    "expanded inside": lambda m: m[..., :1].expand_as(m),
    "expanded rows": lambda m: m[..., :1, :].expand_as(m),
    "one element": lambda m: m[0, 0, 0, 0].expand_as(m),
    "bytes seen as bools": lambda m: m.to(torch.uint8).view(torch.bool),
}


@each_op
@pytest.mark.parametrize("layout", MASK_LAYOUTS)
def test_layouts_of_the_mask(any_route, op, layout):
    x, mask = scores(*SHAPE), MASK_LAYOUTS[layout](random_mask(*SHAPE))
    plain = mask.clone(memory_format=torch.contiguous_format)
    for dim in (-1, -2, 0):
        upstream = upstream_like(op, x, dim)
        ours = both(any_route, op, x, dim, mask, upstream)
        assert_close(ours, both(any_route, op, x, dim, plain, upstream))


@pytest.mark.parametrize("op", [SOFTMAX, LOG_SOFTMAX], ids=label)
@pytest.mark.parametrize("transposed", [False, True])
def test_causal_attention(any_route, op, transposed):
    """A square of [S, S] over [B, H, S, S], and padding [B, 1, 1, S] with it."""
    x = scores(2, 3, 65, 65)
    causal = torch.ones(65, 65, dtype=torch.bool).tril()
    causal = causal.T.contiguous().T if transposed else causal
    padding = (torch.arange(65) < torch.tensor([40, 0])[:, None])[:, None, None]
    for mask in (causal, padding, causal & padding):
        upstream = upstream_like(op, x, -1)
        value, gradient = both(any_route, op, x, -1, mask, upstream)
        assert_within(value_errors(op, x, -1, mask, value), allowed(any_route, x, -1), "value")
        empty = ~mask.any(-1, keepdim=True).expand(2, 3, 65, 1)
        assert (gradient * empty == 0).all()
        assert not gradient.isnan().any()


@each_op
def test_nothing_is_changed(any_route, op):
    """Nor is a result the memory of an input, where it could be: a row of one."""
    for x in (scores(4, 300), scores(4, 1)):
        mask, upstream = random_mask(*x.shape), upstream_like(op, x, -1)
        before = [t.clone() for t in (x, mask, upstream)]
        results = both(any_route, op, x, -1, mask, upstream)
        assert all(map(torch.equal, (x, mask, upstream), before))
        given = {t.data_ptr() for t in (x, mask, upstream)}
        assert not given & {t.data_ptr() for t in results}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_several_dims(any_route, shape):
    """logsumexp over dims that need not be neighbours, each with its own share of the mask."""
    x, mask = scores(*SHAPE), random_mask(*shape, share=0.6)
    for dims in ((0, 1), (1, 3), (-1, 0), (0, 2), (3, 1, 0), (0, 1, 2, 3)):
        assert_several_dims(any_route, x, dims, mask)


def assert_several_dims(any_route, x, dims, mask):
    value, (gradient,) = any_route.both(LOGSUMEXP, [x], dim=dims, mask=mask)
    assert_within(
        value_errors(LOGSUMEXP, x, dims, mask, value), allowed(any_route, x, dims), "value"
    )
    upstream = torch.ones_like(value)
    errors = gradient_errors(LOGSUMEXP, x, dims, mask, value, upstream, gradient)
    assert_within(errors, allowed(any_route, x, dims), "gradient")


@each_op
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)], ids=str)
def test_masks_of_empty_tensors(any_route, op, shape):
    for mask_shape in (shape, (), (1,)):
        assert_empty(any_route, op, torch.empty(shape), torch.ones(mask_shape, dtype=torch.bool))


def assert_empty(any_route, op, x, mask):
    value, (gradient,) = any_route.both(op, [x], dim=-1, mask=mask)
    assert gradient.shape == x.shape
    assert value.shape == (x.shape[:-1] if op.reduces else x.shape)
    assert (value == -math.inf).all()


@each_op
def test_mask_of_no_dimensions(any_route, op):
    for value in (True, False):
        x, mask = torch.tensor(3.0), torch.tensor(value)
        result, (gradient,) = any_route.both(op, [x], dim=0, mask=mask)
        inside = {SOFTMAX: 1.0, LOG_SOFTMAX: 0.0, LOGSUMEXP: 3.0}[op]
        assert result == (inside if value else op.outside)
        assert gradient == (1.0 if value and op.reduces else 0.0)
