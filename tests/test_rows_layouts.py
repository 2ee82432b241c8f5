"""Strides of the row ops: the numbers do not depend on how a tensor lies in memory."""

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import LOGSUMEXP, ROW_OPS
from tests.row_oracle import assert_close
from tests.row_samples import random_mask, scores, upstream_like
from tests.samples import label
from tests.test_rows_mask import MASK_LAYOUTS
from tests.test_shapes import LAYOUTS

LAYOUTS = LAYOUTS | {
    "every second row": lambda x: x.repeat_interleave(2, -2)[..., ::2, :],
    "every second batch": lambda x: x.repeat_interleave(2, 0)[::2],
    "inner transposed": lambda x: x.mT.contiguous().mT,
    "reversed dims": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "diagonal": lambda x: torch.diag_embed(x).diagonal(dim1=-2, dim2=-1),
    "overlapping": lambda x: x.flatten().as_strided(x.shape, (7, 5, 3, 1)),
}
each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
SHAPE = (3, 4, 5, 6)


def plain(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).resolve_neg()


def both(route, op, x, dim, upstream, **options):
    """Value and gradient, both of which are contiguous whatever the layout of the input is."""
    value, (gradient,) = route.both(op, [x], upstream, dim=dim, **options)
    if route.name != "composite":
        assert value.is_contiguous()
        assert gradient.is_contiguous()
    return value, gradient


@each_op
@each_layout
def test_layouts(any_route, op, layout):
    x = LAYOUTS[layout](scores(*SHAPE))
    for dim in range(4):
        upstream = upstream_like(op, x, dim)
        ours = both(any_route, op, x, dim, upstream)
        assert_close(ours, both(any_route, op, plain(x), dim, upstream))


@each_op
@each_layout
def test_layouts_of_the_upstream_gradient(route, op, layout):
    x, whole = scores(*SHAPE), LAYOUTS[layout](scores(*SHAPE, seed=5))
    for dim in range(4):
        upstream = whole.select(dim, 0) if op.reduces else whole
        ours = both(route, op, x, dim, upstream)
        assert_close(ours, both(route, op, x, dim, plain(upstream)))


@each_op
@pytest.mark.parametrize("dim", range(4))
def test_upstream_of_a_sum(any_route, op, dim):
    """One number, expanded to everything; and one a row."""
    x, whole = scores(*SHAPE), op.torch(scores(*SHAPE), dim)
    for upstream in (torch.tensor(0.7).expand_as(whole), whole[:, :1].expand_as(whole)):
        ours = both(any_route, op, x, dim, upstream)
        assert_close(ours, both(any_route, op, x, dim, plain(upstream)))


@each_op
@each_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_layouts_under_a_mask(route, op, layout, dtype):
    """Both strided, each its own way."""
    if layout == "negative bit" and dtype is torch.bfloat16:
        pytest.skip("torch has no complex bfloat16")
    x, upstream = LAYOUTS[layout](scores(*SHAPE, dtype=dtype)), scores(*SHAPE, seed=5, dtype=dtype)
    for dim, mask in enumerate(MASK_LAYOUTS.values()):
        mask, dim = mask(random_mask(*SHAPE)), dim % 4
        given = upstream.select(dim, 0) if op.reduces else upstream
        ours = both(route, op, x, dim, given, mask=mask)
        assert_close(ours, both(route, op, plain(x), dim, given, mask=plain(mask)))


@each_op
@each_dtype
@pytest.mark.parametrize("axis", [0, 1])
def test_storage_offsets(route, op, dtype, axis):
    """Rows that begin anywhere, not where a vector does."""
    whole, upstream = scores(400, dtype=dtype), scores(400, dtype=dtype, seed=5)
    for start in range(33):
        x, g = (t[start : start + 3 * 101].view(3, 101) for t in (whole, upstream))
        g = g.select(axis, 0) if op.reduces else g
        ours = both(route, op, x, axis, g)
        expected = both(route, op, x.clone(), axis, g.clone())
        assert all(map(torch.equal, ours, expected)), start


@each_op
@each_dtype
@pytest.mark.parametrize("shape", [(70, 1), (70, 100), (1, 4096), (300, 33)], ids=str)
def test_slices_of_a_matrix(route, op, dtype, shape):
    """Rows further apart than they are long; columns of a wider matrix."""
    whole = scores(shape[0], shape[1] + 29, dtype=dtype)
    for x in (whole[:, 7 : 7 + shape[1]], whole.T[7 : 7 + shape[1]]):
        for dim in (0, 1):
            upstream = upstream_like(op, x, dim)
            ours = both(route, op, x, dim, upstream)
            assert_close(ours, both(route, op, plain(x), dim, upstream))


@each_layout
def test_layouts_over_several_dims(any_route, layout):
    x = LAYOUTS[layout](scores(*SHAPE))
    for dims in ((0, 1), (2, 3), (0, 3), (1, 3), (0, 2, 3), (3, 0, 2, 1)):
        upstream = scores(*torch.logsumexp(x, dims).shape, seed=5)
        ours = both(any_route, LOGSUMEXP, x, dims, upstream)
        assert_close(ours, both(any_route, LOGSUMEXP, plain(x), dims, upstream))
