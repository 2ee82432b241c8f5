"""The row kernels of a GPU, on one or emulated: every length at which they choose another path."""
# ruff: noqa: F811  (fixtures)

import pytest
import torch

from tests.cases import DTYPES
from tests.cuda_devices import DeviceRoute, gpu, held, shifted, there, vector  # noqa: F401
from tests.row_cases import LOGSUMEXP, ROW_OPS
from tests.row_oracle import allowed, assert_within, gradient_errors, value_errors
from tests.row_samples import scores
from tests.samples import label

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
WARP, BLOCK, RANKS = 32, 1024, 16  # threads of a row: one warp, at most, at most across rows
CHUNK = 256  # threads of a chunk of a longer row


def upstream_of(op, x, dim):
    """Of the result's shape, on the CPU."""
    return scores(*op.torch(x, dim).shape, dtype=x.dtype, seed=5)


def check(there, op, x, dim, upstream=None, what=""):
    """Value and gradient are within their bounds of the exact ones."""
    upstream = upstream_of(op, x, dim) if upstream is None else upstream
    value, (gradient,) = there.both(op, [x], upstream, dim=dim)
    bound = allowed(there, x, dim)
    assert_within(value_errors(op, x, dim, None, value, precise=False), bound, f"value {what}")
    errors = gradient_errors(op, x, dim, None, value, upstream, gradient)
    assert_within(errors, bound, f"gradient {what}")


# --- rows along memory ---------------------------------------------------------------------------


def short(dtype):
    """Lengths of rows that one warp takes, and of the first that a block takes."""
    width, most = vector(dtype), WARP * held(dtype)
    ends = (width, 2 * width, 16 * width, WARP * width, most // 2, most, 2 * most)
    near = {end + by for end in ends for by in (-1, 0, 1, width)}
    return sorted(near | {1, 2, 3, 31, 32, 33, 511, 512, 513})


def long(dtype):
    """Of rows that a block takes, in one piece or in chunks."""
    width, block, chunk = vector(dtype), BLOCK * held(dtype), CHUNK * held(dtype)
    vectors = {end + by for end in (block, 2 * block, 9 * chunk) for by in (0, width)}
    singles = {end + by for end in (block, 5 * chunk) for by in (-1, 1)}
    return sorted(vectors | singles | {1023, 1024, 1025, 2 * block + 1})


@each_op
@each_dtype
def test_short_rows(there, op, dtype):
    for n in short(dtype):
        check(there, op, scores(3, n, dtype=dtype), -1, what=n)


@each_op
@each_dtype
def test_long_rows(there, op, dtype):
    for n in long(dtype):
        check(there, op, scores(2, n, dtype=dtype), -1, what=n)


@each_op
@each_dtype
@pytest.mark.parametrize("n", [1, 2, 3, 8, 31])
def test_numbers_of_rows(there, op, dtype, n):
    """Rows that share a block, of which the last is not full."""
    for rows in (1, 2, 3, 4, 5, 31, 63, 64, 65, 127, 128, 129, 300):
        check(there, op, scores(rows, n, dtype=dtype), -1, what=(rows, n))


@each_op
@each_dtype
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (2, 0, 40)], ids=str)
def test_nothing(there, op, dtype, shape):
    """logsumexp of an empty row is -inf."""
    x = torch.empty(shape, dtype=dtype)
    for dim in range(len(shape)):
        expected = op.torch(x, dim)
        value, (gradient,) = there.both(op, [x], torch.ones_like(expected), dim=dim)
        assert torch.equal(value, expected)
        assert (gradient.shape, gradient.dtype) == (x.shape, dtype)


@each_dtype
def test_a_row_of_no_dimensions(there, dtype):
    for op in ROW_OPS:
        check(there, op, torch.tensor(1.5, dtype=dtype), 0, torch.tensor(2.0, dtype=dtype))


# --- where rows begin ----------------------------------------------------------------------------


def lengths(dtype):
    """One for each of the paths that vectors take."""
    step = held(dtype)
    return vector(dtype), WARP * step, 2 * WARP * step, BLOCK * step + vector(dtype)


@each_op
@each_dtype
def test_misaligned_rows(there, op, dtype):
    for n in lengths(dtype):
        x, upstream = scores(2, n, dtype=dtype), upstream_of(op, scores(2, n, dtype=dtype), -1)
        check(there, op, shifted(x, 1), -1, what=("x", n))
        check(there, op, x, -1, upstream=shifted(upstream, 1), what=("upstream", n))


@each_op
@each_dtype
def test_strides_that_are_no_multiple_of_a_vector(there, op, dtype):
    for n in lengths(dtype):
        for more in (1, vector(dtype)):
            x = scores(3, n + more, dtype=dtype)[:, :n]
            check(there, op, x, -1, what=("x", n, more))
        whole = scores(3, n + 1, dtype=dtype, seed=5)
        upstream = whole[:, 0] if op.reduces else whole[:, :n]
        check(there, op, scores(3, n, dtype=dtype), -1, upstream=upstream, what=("upstream", n))


@each_op
@each_dtype
def test_every_second_element(there, op, dtype):
    for n in (3, 33, 513):
        check(there, op, scores(3, 2 * n, dtype=dtype)[:, ::2], -1, what=n)
        check(there, op, scores(2 * n, 9, dtype=dtype)[::2], 0, what=n)


@each_op
@each_dtype
def test_one_row_repeated(there, op, dtype):
    for n in lengths(dtype)[:3]:
        check(there, op, scores(1, n, dtype=dtype).expand(3, n), -1, what=n)
        upstream = upstream_of(op, scores(1, n, dtype=dtype), -1)
        x = scores(3, n, dtype=dtype)
        check(there, op, x, -1, upstream=upstream.expand_as(op.torch(x, -1)), what=n)


# --- rows across memory --------------------------------------------------------------------------


def depths(dtype):
    """Lengths of rows whose elements lie apart: by the threads of a row, then in chunks."""
    step, chunk = held(dtype), RANKS * held(dtype)
    near = {end + by for end in (step, 2 * step, chunk, 2 * chunk) for by in (-1, 0, 1)}
    return sorted(near | {2, 3, 15, 16, 17, 255, 256, 257, 511, 512, 513})


@each_op
@each_dtype
@pytest.mark.parametrize("columns", [7, 8, 31, 32, 33, 65])
def test_across(there, op, dtype, columns):
    for n in depths(dtype):
        check(there, op, scores(n, columns, dtype=dtype), 0, what=n)


@each_op
@each_dtype
@pytest.mark.parametrize("n", [2, 17, 33])
def test_many_columns(there, op, dtype, n):
    for columns in (127, 128, 129, 255, 256, 257):
        check(there, op, scores(n, columns, dtype=dtype), 0, what=columns)


@each_op
@each_dtype
def test_in_the_middle(there, op, dtype):
    for n in (2, 16, 17, RANKS * held(dtype) + 1):
        check(there, op, scores(3, n, 33, dtype=dtype), 1, what=n)
        check(there, op, scores(3, n, 40, dtype=dtype)[..., 1:34], 1, what=n)
        check(there, op, scores(2, 9, n, 3, dtype=dtype).permute(0, 2, 3, 1), 1, what=n)


@pytest.mark.cuda
@each_op
def test_many_kept_dimensions(gpu, op):
    """None of which can be joined with another: as many as torch has on a GPU, and one more."""
    route = DeviceRoute(device=gpu)
    for dims in (12, 25):
        x = strided(dims)
        value, plain = (route.value(op, [t], dim=0) for t in (x, x.contiguous()))
        torch.testing.assert_close(value, plain, rtol=1e-6, atol=1e-6)
    with pytest.raises(RuntimeError, match="at most 25 dimensions"):
        route.value(op, [strided(27)], dim=0)


def strided(dims):
    """Two in each: the strides are odd."""
    return scores(1000).as_strided([2] * dims, [2 * d + 3 for d in range(dims)])


# --- rows over several dims ----------------------------------------------------------------------

APART = [
    ((3, 4, 5), (0, 2)),
    ((3, 2, 4, 5), (0, 2)),
    ((2, 3, 4, 5), (3, 1)),
    ((3, 4, 5, 8), (0, 2)),
    ((3, 4, 5, 33), (0, 2)),
    ((2, 3, 2, 3, 2), (0, 2, 4)),
    ((2, 3, 2, 3, 9), (0, 2)),
    ((2, 2, 300, 9), (0, 2)),
    *(((3, 2, n), (0, 2)) for n in (256, 257, 512, 513, 1025, 2049, 4100)),
    ((2, 2, 20_481), (0, 2)),
    ((3, 4, 5), (0, 1, 2)),
]


@each_dtype
@pytest.mark.parametrize(("shape", "dims"), APART, ids=str)
def test_dims_that_lie_apart(there, shape, dims, dtype):
    """Runs in one chunk or in several, along memory or across."""
    check(there, LOGSUMEXP, scores(*shape, dtype=dtype), dims)


@each_dtype
@pytest.mark.parametrize("order", [(2, 0, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)], ids=str)
def test_dims_in_another_order(there, order, dtype):
    x = scores(3, 4, 5, 17, dtype=dtype).permute(order)
    for dims in ((0, 1), (0, 2), (1, 3), (0, 3), (1, 2, 3), (0, 1, 2, 3)):
        check(there, LOGSUMEXP, x, dims, what=dims)


@each_dtype
def test_more_chunks_than_threads_join_them(there, dtype):
    x = scores(1100, 3, dtype=dtype)[:, :2]
    check(there, LOGSUMEXP, x, (0, 1))


# --- the same numbers ----------------------------------------------------------------------------


@each_op
@each_dtype
def test_a_row_does_not_depend_on_the_others(there, op, dtype):
    """Nor on the part of the call in which it is; and always the same bits."""
    for n in (5, 33, 600):
        x, dim = scores(40, n, dtype=dtype), -1
        upstream = upstream_of(op, x, dim)
        whole, (gradient,) = there.both(op, [x], upstream, dim=dim)
        for row in (0, 17, 39):
            here = slice(row, row + 1)
            value, (own,) = there.both(op, [shifted(x[here], 0)], upstream[here], dim=dim)
            assert torch.equal(value, whole[here])
            assert torch.equal(own, gradient[here])
