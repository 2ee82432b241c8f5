"""Broadcasting and type promotion are torch's own."""

import itertools

import pytest
import torch

from safeops import finite_clip, safe_div, safe_log, safe_sqrt
from tests.cases import OP
from tests.samples import label
from tests.test_shapes import assert_same, operands, values

DIV = OP["safe_div"]
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATING, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)

SHAPES = [
    ((5, 7), (7,)),
    ((5, 7), (5, 1)),
    ((5, 7), (1, 7)),
    ((5, 7), (1, 1)),
    ((5, 7), ()),
    ((64, 33), (33,)),
    ((33, 64), (33, 1)),
    ((5, 1), (1, 7)),
    ((2, 3, 4), (3, 1)),
    ((2, 1, 4), (3, 1)),
    ((4, 3, 2, 5), (1, 3, 1, 1)),
    ((4, 3, 2, 5), (4, 1, 2, 1)),
    ((2, 3), (4, 1, 3)),
    ((1, 1, 1), (6,)),
    ((0, 3), (1, 3)),
    ((0, 3), (1,)),
    ((3, 0), (3, 1)),
    ((1,), (0,)),
]


@pytest.mark.parametrize(("left", "right"), [*SHAPES, *((b, a) for a, b in SHAPES)], ids=str)
def test_broadcast(route, left, right):
    x, y = values(*left), values(*right, seed=1)
    shape = torch.broadcast_shapes(left, right)
    wide = [t.expand(shape).contiguous() for t in (x, y)]
    value, gradients = route.both(DIV, [x, y], values(*shape, seed=9))
    expected, expected_gradients = route.both(DIV, wide, values(*shape, seed=9))
    assert_same(value, expected)
    assert value.stride() == torch.div(x, y).stride()
    for ours, theirs, like in zip(gradients, expected_gradients, (x, y), strict=True):
        assert ours.shape == like.shape
        assert_is_the_sum(ours, theirs)


def assert_is_the_sum(ours, terms):
    """Saturated: the sum of two of the largest number is the largest number (G2)."""
    limit = torch.finfo(ours.dtype).max
    largest = terms.abs().max().item() if terms.numel() else 0.0
    exact = terms.double().sum_to_size(ours.shape).clamp(-limit, limit)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("dtype", FLOATING, ids=label)
def test_sum_of_saturated_gradients_is_finite(route, dtype):
    y = torch.full((), torch.finfo(dtype).smallest_normal, dtype=dtype)
    for numerators in ([1.0, -1.0], [9.0, 9.0]):
        x = torch.tensor(numerators * 64, dtype=dtype)
        _, (_, gradient) = route.both(DIV, [x, y], torch.ones_like(x))
        assert gradient.item() == (0 if x[1] < 0 else -torch.finfo(dtype).max)


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_broadcast_gradient_to_one(route, left, right):
    """Only the operand that asks gets a gradient, and of its own shape."""
    x, y = values(*left), values(*right, seed=1).requires_grad_()
    with route.runs("div", "div_backward"):
        (gradient,) = torch.autograd.grad(safe_div(x, y).sum(), y)
    assert gradient.shape == y.shape
    with route.runs("div", "div_backward"):
        (gradient,) = torch.autograd.grad(safe_div(x.requires_grad_(), y.detach()).sum(), x)
    assert gradient.shape == x.shape


def test_shapes_that_do_not_broadcast(route):
    with pytest.raises(RuntimeError):
        safe_div(torch.ones(2, 3), torch.ones(4))


def sample(dtype, shape):
    """Small numbers that every dtype has, without zeros."""
    numbers = torch.tensor([1, 2, 3, 5, 7, 1, 100, 1]).reshape(2, 4)
    return (numbers[0, 3] if shape == () else numbers).to(dtype)


def assert_is_torchs(ours, theirs):
    assert ours.dtype is theirs.dtype
    assert_same(ours, theirs)


@pytest.mark.parametrize("left", DTYPES, ids=label)
@pytest.mark.parametrize("right", DTYPES, ids=label)
@pytest.mark.parametrize(
    "shapes", [((2, 4), (2, 4)), ((2, 4), ()), ((), (2, 4)), ((), ())], ids=str
)
def test_promotion_of_two_tensors(route, left, right, shapes):
    x, y = sample(left, shapes[0]), sample(right, shapes[1])
    with route.runs("div"):
        ours = safe_div(x, y)
    assert_is_torchs(ours, torch.div(x, y))


@each_dtype
@pytest.mark.parametrize("number", [3, 0.1, True, -7.5, 1e5, 1e-9], ids=str)
@pytest.mark.parametrize("shape", [(2, 4), ()], ids=str)
def test_promotion_with_a_python_number(route, dtype, number, shape):
    """number / x is a division too; torch's own operator multiplies by a rounded reciprocal."""
    x = sample(dtype, shape)
    promoted = (number / x).dtype
    over = torch.tensor(number, dtype=torch.float64).to(promoted).expand_as(x) / x.to(promoted)
    for ours, theirs in [(safe_div(x, number), x / number), (safe_div(number, x), over)]:
        assert ours.dtype is theirs.dtype
        finite = theirs.isfinite()
        assert_same(ours[finite], theirs[finite])
        assert (
            ours[~finite & (torch.tensor(number, dtype=torch.float64).to(promoted).isfinite())]
            .isfinite()
            .all()
        )


@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(FLOATING, 2)), ids=label)
def test_gradients_keep_the_dtype_of_their_input(route, left, right):
    x, y = sample(left, (2, 4)).requires_grad_(), sample(right, (2, 4)).requires_grad_()
    with route.runs("div", "div_backward"):
        safe_div(x, y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (left, right)


@each_dtype
@pytest.mark.parametrize("shape", [(2, 4), ()], ids=str)
@pytest.mark.parametrize(
    ("ours", "theirs"), [(safe_log, torch.log), (safe_sqrt, torch.sqrt)], ids=["log", "sqrt"]
)
def test_promotion_of_one_tensor(route, dtype, shape, ours, theirs):
    x = sample(dtype, shape)
    assert ours(x).dtype is theirs(x).dtype
    torch.testing.assert_close(ours(x), theirs(x))


@each_dtype
@pytest.mark.parametrize("bounds", [(2, 5), (2.5, None), (None, 3), (0, 2.5), (2, 5.5)], ids=str)
@pytest.mark.parametrize("shape", [(2, 4), ()], ids=str)
def test_promotion_of_clip(route, dtype, bounds, shape):
    x = sample(dtype, shape)
    try:
        expected = torch.clamp(x, *bounds)
    except RuntimeError:
        with pytest.raises((TypeError, RuntimeError)):
            finite_clip(x, *bounds)
    else:
        assert_is_torchs(finite_clip(x, *bounds), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=label)
def test_integers_clip_to_nothing_by_default(dtype):
    limits = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max], dtype=dtype)
    assert torch.equal(finite_clip(limits), limits)
    assert torch.equal(finite_clip(limits, nan=0), limits)


def test_default_dtype_takes_integers():
    torch.set_default_dtype(torch.float64)
    try:
        assert safe_log(torch.tensor([1, 0])).dtype is torch.float64
        assert safe_div(torch.tensor([1]), torch.tensor([0])).dtype is torch.float64
        assert safe_div(torch.tensor([1]), 3).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_operands_are_independent(route):
    """x / x counts both paths, as in torch."""
    x = operands(DIV, 9)[0].abs().clamp(1e-3, 1e3).requires_grad_()
    safe_div(x, x).sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros_like(x), atol=1e-4, rtol=0)
