"""logsumexp over one dim and several, and the edge cases that libraries publish for it."""

import itertools
import math

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import LOGSUMEXP
from tests.row_oracle import allowed, assert_within, gradient_errors, value_errors
from tests.row_samples import normal, random_mask, scores
from tests.samples import label

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
SHAPE = (3, 4, 2, 5)
DIMS = [dims for n in (1, 2, 3, 4) for dims in itertools.combinations(range(4), n)]
ORDERS = [(3, 0), (-1, 0), (2, -4, 1), (-2, -1), [1, 2], [3], (0, -1, 1, 2)]


@pytest.mark.parametrize("dims", DIMS + ORDERS, ids=str)
def test_several_dims(any_route, dims):
    """In any order, counted from either end, neighbours or not."""
    for dtype in DTYPES:
        assert_several_dims(any_route, scores(*SHAPE, dtype=dtype), dims)


def assert_several_dims(any_route, x, dims):
    for keepdim in (False, True):
        expected = torch.logsumexp(x, tuple(dims), keepdim)
        upstream = scores(*expected.shape, seed=5, dtype=x.dtype)
        value, (gradient,) = any_route.both(LOGSUMEXP, [x], upstream, dim=dims, keepdim=keepdim)
        assert (value.shape, value.dtype) == (expected.shape, x.dtype)
        assert_within(
            value_errors(LOGSUMEXP, x, dims, None, value), allowed(any_route, x, dims), "value"
        )
        errors = gradient_errors(LOGSUMEXP, x, dims, None, value, upstream, gradient)
        assert_within(errors, allowed(any_route, x, dims), "gradient")


@pytest.mark.parametrize("shape", [(300, 3, 400), (2, 5000, 3), (33, 1, 33, 1), (4, 3, 2, 1500)])
@pytest.mark.parametrize("masked", [False, True])
def test_sizes_over_several_dims(route, shape, masked):
    x, mask = scores(*shape), random_mask(*shape) if masked else None
    for dims in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
        value, (gradient,) = route.both(LOGSUMEXP, [x], dim=dims, mask=mask)
        expected = x.double() if mask is None else torch.where(mask, x.double(), -math.inf)
        torch.testing.assert_close(value.double(), expected.logsumexp(dims), rtol=3e-6, atol=3e-6)
        weights = (expected - expected.logsumexp(dims, keepdim=True)).exp().nan_to_num(0.0)
        torch.testing.assert_close(gradient.double(), weights, rtol=1e-5, atol=1e-12)


@each_dtype
@pytest.mark.parametrize("keepdim", [False, True])
def test_keepdim_is_positional_as_in_torch(any_route, dtype, keepdim):
    x = scores(2, 3, dtype=dtype)
    value = any_route.value(LOGSUMEXP, [x], dim=1, keepdim=keepdim)
    assert torch.equal(LOGSUMEXP.function(x, 1, keepdim), value) or any_route.name == "composite"
    assert value.shape == ((2, 1) if keepdim else (2,))


@each_dtype
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 4), (0, 0)], ids=str)
def test_empty_rows_over_several_dims(any_route, dtype, shape):
    x = torch.empty(shape, dtype=dtype)
    for dims in itertools.combinations(range(len(shape)), 2):
        value, (gradient,) = any_route.both(LOGSUMEXP, [x], dim=dims)
        assert torch.equal(value, torch.logsumexp(x, dims))
        assert gradient.shape == shape


# What SciPy and others publish for it: x, the value, and each element's share of the gradient.
PUBLISHED = [
    ("equal and large", [1000.0, 1000.0], 1000 + math.log(2), [0.5, 0.5]),
    ("equal and very negative", [-1000.0, -1000.0], -1000 + math.log(2), [0.5, 0.5]),
    ("apart by more than exp has room for", [1000.0, -1000.0], 1000.0, [1.0, 0.0]),
    ("the same the other way", [-1e30, 0.0], 0.0, [0.0, 1.0]),
    ("ten thousand equal ones", [0.0] * 10_000, math.log(10_000), [1e-4] * 10_000),
    ("large and ten thousand", [1e4] * 10_000, 1e4 + math.log(10_000), [1e-4] * 10_000),
    ("counting", [float(i) for i in range(200)], 199.45867514538708, None),
    ("logarithms add up", [math.log(i) for i in range(1, 101)], math.log(5050), None),
    ("nothing", [-math.inf, -math.inf], -math.inf, [0.0, 0.0]),
    ("nothing at all", [-math.inf], -math.inf, [0.0]),
    ("nothing and something", [-math.inf, 3.0, -math.inf], 3.0, [0.0, 1.0, 0.0]),
    ("everything", [math.inf, math.inf], math.inf, [0.5, 0.5]),
    ("everything and something", [math.inf, 1e30, -1e30], math.inf, [1.0, 0.0, 0.0]),
    ("everything and nothing", [-math.inf, math.inf], math.inf, [0.0, 1.0]),
    ("a NaN and everything", [math.nan, math.inf], math.nan, [math.nan, math.nan]),
    ("tiny beside one", [0.0, -40.0], 4.248354255291589e-18, None),
    ("half and half", [math.log(0.5), math.log(0.5)], 0.0, [0.5, 0.5]),
    ("zeros of either sign", [0.0, -0.0], math.log(2), [0.5, 0.5]),
]


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case[0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=label)
@pytest.mark.parametrize("dim", [0, (0, 1), (1,)], ids=str)
def test_published_edge_cases(any_route, case, dtype, dim):
    _, numbers, value, share = case
    x = torch.tensor(numbers, dtype=dtype)
    x = x[None] if dim == (1,) else x[:, None]
    ours, (gradient,) = any_route.both(LOGSUMEXP, [x], dim=dim)
    eps = torch.finfo(dtype).eps
    expected = torch.full_like(ours, value)
    torch.testing.assert_close(ours, expected, rtol=2 * eps, atol=eps, equal_nan=True)
    if share and not (any_route.name == "composite" and math.isnan(value)):
        expected = torch.tensor(share, dtype=dtype).view_as(x)
        torch.testing.assert_close(gradient, expected, rtol=8 * eps, atol=0, equal_nan=True)


@each_dtype
def test_weights_are_a_mask(any_route, dtype):
    """SciPy's b= of zeros and ones, which may stand on anything."""
    x = torch.tensor([[1.0, math.inf, 2.0], [math.nan, 3.0, -math.inf]], dtype=dtype)
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()
    value, (gradient,) = any_route.both(LOGSUMEXP, [x], dim=1, mask=mask)
    expected = torch.tensor([math.log(math.exp(1) + math.exp(2)), 3.0])
    torch.testing.assert_close(value, expected.to(dtype))
    torch.testing.assert_close(gradient[1], torch.tensor([0.0, 1.0, 0.0], dtype=dtype))
    assert gradient[0, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=label)
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, -1e6])
def test_gradient_sums_to_the_upstream(any_route, dtype, offset):
    """Also far from zero, where the result is rounded to far more than a probability."""
    x = (normal(8, 300) + offset).to(dtype)
    upstream = torch.linspace(-3, 4, 8, dtype=dtype)
    (gradient,) = any_route.gradients(LOGSUMEXP, [x], upstream, dim=-1)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.sum(-1), upstream, rtol=16 * eps, atol=0)


def test_integers_promote_as_in_torch(any_route):
    x = torch.tensor([[1, 2, 3], [0, 0, 0]])
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        value = any_route.value(LOGSUMEXP, [x.to(dtype)], dim=1)
        torch.testing.assert_close(value, torch.logsumexp(x.to(dtype), 1))
        assert value.dtype is torch.float32
