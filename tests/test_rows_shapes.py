"""Shapes and sizes of the row ops: every dim, vector widths and block edges, nothing, one, many."""

import math

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import ROW_OPS
from tests.row_oracle import allowed, assert_within, gradient_errors, value_errors
from tests.row_samples import scores
from tests.samples import label

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)

EDGES = [*range(1, 36), 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 130, 191, 192, 255]
EDGES += [256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097]
EDGES += [5000, 8191, 8192, 8193, 12_289]
INNER = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100, 129, 1000, 2049, 4095, 4096, 4097, 8200]


def upstream_of(op, x, dim):
    upstream = scores(*x.shape, dtype=x.dtype, seed=5)
    return upstream.select(dim, 0) if op.reduces and x.dim() else upstream


def check(route, op, x, dim, what, mask=None):
    """Value and gradient are the exact ones, and lie as torch's do."""
    upstream = upstream_of(op, x, dim)
    value, (gradient,) = route.both(op, [x], upstream, dim=dim, mask=mask)
    bound = allowed(route, x, dim)
    assert_within(value_errors(op, x, dim, mask, value, precise=False), bound, f"value {what}")
    kept = None if route.name == "composite" else value
    errors = gradient_errors(op, x, dim, mask, kept, upstream, gradient)
    assert_within(errors, bound, f"gradient {what}")
    for tensor, like in ((value, op.torch(x, dim)), (gradient, x)):
        assert (tensor.shape, tensor.dtype) == (like.shape, like.dtype)
        assert tensor.is_contiguous()


def edges(dtype):
    """Every length in float32, of which the other types have their share."""
    start = DTYPES.index(dtype)
    return EDGES if dtype is torch.float32 else EDGES[start::4]


@each_op
@each_dtype
def test_lengths_of_the_last_dim(route, op, dtype):
    for n in edges(dtype):
        check(route, op, scores(3, n, dtype=dtype), -1, n)


@each_op
@each_dtype
def test_lengths_of_another_dim(route, op, dtype):
    for n in edges(dtype):
        check(route, op, scores(n, 3, dtype=dtype), 0, n)
        check(route, op, scores(2, n, 17, dtype=dtype), 1, n) if n < 600 else None


@each_op
@each_dtype
@pytest.mark.parametrize("n", [1, 7, 33])
def test_inner_sizes(route, op, dtype, n):
    for inner in INNER if dtype is torch.float32 else INNER[DTYPES.index(dtype) :: 4]:
        check(route, op, scores(2, n, inner, dtype=dtype), 1, (n, inner)) if n * inner < 1e5 else 0


@each_op
@pytest.mark.parametrize("n", [1, 5, 64, 300])
def test_numbers_of_rows(route, op, n):
    for rows in (1, 2, 3, 7, 16, 31, 64, 1000):
        check(route, op, scores(rows, n), -1, (rows, n))
        check(route, op, scores(n, rows), 0, (n, rows))


@each_op
@pytest.mark.parametrize("shape", [(6,), (4, 5), (3, 4, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)], ids=str)
def test_every_dim(any_route, op, shape):
    for dim in range(-len(shape), len(shape)):
        x = scores(*shape)
        check(any_route, op, x, dim, dim)
        ours = any_route.value(op, [x], dim=dim)
        torch.testing.assert_close(ours, op.torch(x, dim), rtol=3e-6, atol=1e-6)


@each_op
@each_dtype
@pytest.mark.parametrize("shape", [(1,), (1, 1), (5, 1), (1, 5), (2, 1, 3)], ids=str)
def test_rows_of_one(any_route, op, dtype, shape):
    for number in (3.5, -math.inf, math.inf, math.nan):
        x, dim = torch.full(shape, number, dtype=dtype), shape.index(1)
        value = any_route.value(op, [x], dim=dim)
        assert_within(value_errors(op, x, dim, None, value, precise=False), 0, number)


@each_op
@each_dtype
@pytest.mark.parametrize("number", [3.5, -3.5, -math.inf, math.inf, math.nan])
def test_no_dimensions(any_route, op, dtype, number):
    """As torch: dim 0 or -1, a row of one element."""
    x = torch.tensor(number, dtype=dtype)
    for dim in (0, -1):
        value, (gradient,) = any_route.both(op, [x], dim=dim)
        for tensor in (value, gradient):
            assert (tensor.shape, tensor.dtype) == (torch.Size(()), dtype)
        assert_within(value_errors(op, x, dim, None, value, precise=False), 0, number)
        assert x.isnan() or gradient == (1.0 if op.reduces and number > -math.inf else 0.0)


@each_op
@each_dtype
def test_empty(any_route, op, dtype):
    """The empty tensor; logsumexp of an empty row is -inf."""
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4), (0, 0), (2, 3, 0)):
        x = torch.empty(shape, dtype=dtype)
        for dim in range(-len(shape), len(shape)):
            value, (gradient,) = any_route.both(op, [x], dim=dim)
            expected = op.torch(x, dim)
            assert (value.shape, value.dtype) == (expected.shape, dtype)
            assert torch.equal(value, expected)
            assert (gradient.shape, gradient.dtype) == (x.shape, dtype)


@each_op
def test_many_dimensions(route, op):
    x = scores(*[2] * 12).permute(*range(11, -1, -1))
    for dim in (0, 5, 11):
        check(route, op, x, dim, dim)


@each_op
@pytest.mark.parametrize("shape", [(2, 700_001), (700_001, 2), (1, 300, 4099)], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_large(kernel, op, shape, dim):
    """Split over threads by rows or inside them, and beyond the second cache."""
    x = scores(*shape)
    value, (gradient,) = kernel.both(op, [x], upstream_of(op, x, dim), dim=dim)
    expected = op.torch(x.double(), dim)
    torch.testing.assert_close(value.double(), expected, rtol=3e-6, atol=1e-6)
    assert gradient.isfinite().all()


@pytest.mark.slow
@each_op
@pytest.mark.parametrize("dim", [0, 1])
def test_huge(kernel, op, dim):
    """More than 2**31 elements: 64-bit sizes and offsets. Needs 9 GB."""
    x = torch.zeros(65_537, 32_769, dtype=torch.bfloat16)
    x[-1], x[:, -1] = 5.0, 5.0
    value = kernel.value(op, [x], dim=dim)
    corner = value[-1] if op.reduces else value[-1, -1]
    expected = op.torch(x[-1].float() if dim == 1 else x[:, -1].float(), 0)
    expected = expected if op.reduces else expected[-1]
    torch.testing.assert_close(corner, expected.to(torch.bfloat16), rtol=0.02, atol=0)
