"""The row kernels of a GPU on each of their paths: infinities, NaN, masks, sums that overflow."""
# ruff: noqa: F811  (fixtures)

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import safeops
from tests.cases import DTYPES
from tests.cuda_devices import gpu, held, placed, there, vector  # noqa: F401
from tests.row_cases import LOG_SOFTMAX, ROW_OPS
from tests.row_oracle import allowed, assert_close, assert_within, gradient_errors, value_errors
from tests.row_samples import random_mask, scores
from tests.samples import label

INF, NAN = math.inf, math.nan


class Path(NamedTuple):
    """The length of a row that takes it, and whether rows lie across memory."""

    length: Callable
    across: bool = False

    def lay(self, rows):
        """(rows, elements) as they lie there, and the dim."""
        return (rows.T.contiguous(), 0) if self.across else (rows, -1)

    def rows(self, tensor):
        return tensor.T if self.across and tensor.dim() == 2 else tensor


PATHS = {
    "a vector": Path(vector),
    "a part of a warp": Path(lambda d: 8 * vector(d)),
    "a warp": Path(lambda d: 32 * held(d)),
    "a block": Path(lambda d: 40 * held(d)),
    "a full block": Path(lambda d: 1024 * held(d)),
    "twice a block, or chunks": Path(lambda d: 1024 * held(d) + vector(d)),
    "single elements": Path(lambda d: 33),
    "a block of single elements": Path(lambda d: 32 * held(d) + 1),
    "chunks of single elements": Path(lambda d: 1024 * held(d) + 1),
    "across": Path(lambda d: held(d) + 1, across=True),
    "across, many threads": Path(lambda d: 16 * held(d), across=True),
    "across, chunks": Path(lambda d: 32 * held(d) + 1, across=True),
}
SHORT = [name for name, path in PATHS.items() if path.length(torch.float32) < 2000]
PLACES = [
    (name, dtype)
    for name in PATHS
    for dtype in (DTYPES if name in SHORT else (torch.float64, torch.float32))
]
each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_place = pytest.mark.parametrize(("path", "dtype"), PLACES, ids=lambda p: label(p) or p)


def upstream_like(op, rows, seed=5):
    whole = scores(*rows.shape, dtype=rows.dtype, seed=seed)
    return whole[:, 0] if op.reduces else whole


def both(there, path, op, rows, upstream, mask=None):
    """Value and gradient, as rows."""
    x, dim = path.lay(rows)
    upstream = upstream if op.reduces else path.lay(upstream)[0]
    mask = mask if mask is None or mask.dim() < 2 else path.lay(mask)[0]
    value, (gradient,) = there.both(op, [x], upstream, dim=dim, mask=mask)
    return path.rows(value), path.rows(gradient)


def check(there, path, op, rows, upstream, mask=None):
    """Within the bounds, which are those of the layout."""
    value, gradient = both(there, path, op, rows, upstream, mask)
    bound = allowed(there, *path.lay(rows))
    assert_within(value_errors(op, rows, -1, mask, value, precise=False), bound, "value")
    errors = gradient_errors(op, rows, -1, mask, value, upstream, gradient)
    assert_within(errors, bound, "gradient")


def assert_same(ours, theirs):
    for actual, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


# --- what is not finite --------------------------------------------------------------------------

# what stands at which places of a row, in this order; ordinary rows are between them
RAGGED = (
    {0: INF},
    {},
    {-1: INF},
    {0: INF, -1: INF},
    {0.5: NAN},
    {},
    {0: INF, -1: NAN},
    {"all": -INF},
    {"all": -INF, -1: 0.0},
    {0.5: -INF},
    {"all": INF},
    {0.5: 1e300, -1: 1e300},
    {"all": -1e300},
)


def ragged(n, dtype):
    rows, limit = scores(len(RAGGED), n, dtype=dtype), torch.finfo(dtype).max
    for row, places in zip(rows, RAGGED, strict=True):
        for place, value in places.items():
            at = slice(None) if place == "all" else int(place * n) if place != -1 else -1
            row[at] = max(-limit, min(limit, value)) if math.isfinite(value) else value
    return rows


@each_place
@each_op
def test_ragged_rows(there, path, op, dtype):
    path = PATHS[path]
    rows = ragged(path.length(dtype), dtype)
    upstream = upstream_like(op, rows)
    upstream[1::3] = 0
    check(there, path, op, rows, upstream)


@pytest.mark.parametrize("path", SHORT)
@each_op
@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_bad_upstream_passes(there, path, op, bad):
    """At the element itself, and in its row alone."""
    path = PATHS[path]
    rows = scores(9, path.length(torch.float32))
    upstream = upstream_like(op, rows)
    (upstream if op.reduces else upstream[:, -1])[4] = bad
    wrong = ~both(there, path, op, rows, upstream)[1].isfinite()
    assert wrong[4, -1]
    wrong[4] = False
    assert not wrong.any()


# --- sums that overflow --------------------------------------------------------------------------

# of upstream gradients as large as can be: all positive, alternating, one negative
SIGNS = (
    lambda i: i * 0 + 1,
    lambda i: 1 - 2 * (i % 2),
    lambda i: 1 - 2 * (i == 1).long(),
)


@each_place
@each_op
def test_gradients_that_overflow(there, path, op, dtype):
    """In some rows, between ordinary ones."""
    path, limit = PATHS[path], torch.finfo(dtype).max
    rows = scores(9, path.length(dtype), dtype=dtype)
    upstream = upstream_like(op, rows)
    for row, signs in enumerate(SIGNS):
        large = signs(torch.arange(rows.shape[1])).to(dtype) * limit
        upstream[2 * row] = large[0] if op.reduces else large
    if dtype is torch.float64:  # the oracle's own numbers would overflow
        assert_linear(there, path, op, rows, upstream)
    else:
        check(there, path, op, rows, upstream)


def assert_linear(there, path, op, rows, upstream):
    """A smaller upstream gradient, of which nothing overflows, gives one that much smaller."""
    (_, gradient), (_, small) = (
        both(there, path, op, rows, upstream * scale) for scale in (1, 2.0**-64)
    )
    limit = torch.finfo(upstream.dtype).max
    expected = (small * 2.0**64).clamp(-limit, limit)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-13 * limit)


# --- masks ---------------------------------------------------------------------------------------


def masks(n):
    """Of ragged rows: random ones, all, nothing, the last element only."""
    mask = random_mask(len(RAGGED), n)
    mask[2], mask[5], mask[8], mask[9] = True, False, False, False
    mask[9, -1] = True
    return mask


@each_place
@each_op
def test_masks(there, path, op, dtype):
    path = PATHS[path]
    rows = scores(len(RAGGED), path.length(dtype), dtype=dtype)
    check(there, path, op, rows, upstream_like(op, rows), masks(rows.shape[1]))


@pytest.mark.parametrize("path", PATHS)
@each_op
def test_nothing_under_a_mask_is_read(there, path, op):
    """Neither of x nor of the upstream gradient; a value is that of x = -inf there."""
    path = PATHS[path]
    rows = scores(len(RAGGED), path.length(torch.float32))
    mask, upstream = masks(rows.shape[1]), upstream_like(op, rows)
    expected = both(there, path, op, rows, upstream, mask)
    for filler in (NAN, INF, -INF):
        garbage = upstream if op.reduces else torch.where(mask, upstream, filler)
        ours = both(there, path, op, torch.where(mask, rows, filler), garbage, mask)
        assert_same(ours, expected)
    if op is not LOG_SOFTMAX:  # there an element at -inf has its own upstream gradient
        hidden = upstream if op.reduces else torch.where(mask, upstream, 0.0)
        assert_same(both(there, path, op, torch.where(mask, rows, -INF), hidden), expected)


@pytest.mark.parametrize("path", SHORT)
@each_op
@pytest.mark.parametrize("of_rows", [True, False])
@pytest.mark.parametrize("of_elements", [True, False])
def test_masks_that_broadcast(there, path, op, of_rows, of_elements):
    path = PATHS[path]
    rows = scores(9, path.length(torch.float32))
    mask = random_mask(9 if of_rows else 1, rows.shape[1] if of_elements else 1, share=0.6)
    upstream, whole = upstream_like(op, rows), mask.expand(rows.shape).contiguous()
    ours = both(there, path, op, rows, upstream, mask)
    assert_same(ours, both(there, path, op, rows, upstream, whole))


@each_op
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
@pytest.mark.parametrize("dim", range(4))
def test_masks_of_several_dims(there, op, dtype, dim):
    """In each dim one or all, and strides of their own."""
    x = scores(2, 3, 5, 33, dtype=dtype)
    upstream = scores(*op.torch(x, dim).shape, dtype=dtype, seed=5)
    for bits in range(16):
        shape = [n if bits >> d & 1 else 1 for d, n in enumerate(x.shape)]
        mask = random_mask(*shape[::-1], share=0.6).permute(3, 2, 1, 0)
        ours = there.both(op, [x], upstream, dim=dim, mask=mask)
        whole = there.both(op, [x], upstream, dim=dim, mask=mask.expand(x.shape).contiguous())
        assert_close((ours[0], *ours[1]), (whole[0], *whole[1]))


@each_op
def test_masks_without_a_dimension(there, op):
    rows = scores(9, 33)
    for taken in (True, False):
        ours = both(there, PATHS["a warp"], op, rows, upstream_like(op, rows), torch.tensor(taken))
        whole = torch.full(rows.shape, taken)
        assert_same(ours, both(there, PATHS["a warp"], op, rows, upstream_like(op, rows), whole))


# --- more chunks than a warp has lanes -----------------------------------------------------------


@pytest.mark.parametrize("bad", [INF, NAN])
@pytest.mark.parametrize("shape", [(1, 131_073), (33, 64)])
def test_a_bad_element_among_many_chunks(there, shape, bad):
    """An infinity takes the whole gradient, a NaN reaches every element."""
    wide = torch.zeros(shape[0], shape[1] + 1)
    wide[0, 0] = bad
    x = placed(wide, there.device)[:, :-1].requires_grad_()
    safeops.logsumexp(x, (0, 1)).backward()
    expected = torch.zeros(shape) if bad == INF else torch.full(shape, NAN)
    if bad == INF:
        expected[0, 0] = 1
    torch.testing.assert_close(x.grad.cpu(), expected, equal_nan=True)
