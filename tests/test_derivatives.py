"""G5: derivatives of higher order, checked against differences and at the singular points."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tests import oracle
from tests.cases import DTYPES
from tests.kernelless_cases import EVERY_OP
from tests.routes import Recorder
from tests.samples import label, specials

# torch's own forward-mode formulas come from a script that warns
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")
each_variant = pytest.mark.parametrize(
    ("op", "options"),
    [(op, options) for op in EVERY_OP for options in op.options],
    ids=label,
)


def points(op):
    """float64 inputs on both sides of the switch points and away from them."""
    return [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in op.inner]


def gradient_function(op, options):
    """The function whose value is the gradient of the op's sum, itself differentiable."""

    def function(*inputs):
        value = op.function(*inputs, **options)
        return torch.autograd.grad(value.sin().sum(), inputs, create_graph=True)

    return function


@each_variant
def test_first_order(route, op, options):
    with route.runs(op.raw, f"{op.raw}_backward"):
        assert gradcheck(
            lambda *inputs: op.function(*inputs, **options),
            points(op),
            check_forward_ad=True,
        )


@each_variant
def test_batched(route, op, options):
    """Not recorded: the batching of is_grads_batched does not see through a dispatch mode."""
    assert gradcheck(
        lambda *inputs: op.function(*inputs, **options),
        points(op),
        check_batched_grad=True,
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(
        lambda *inputs: op.function(*inputs, **options).sin(), points(op), check_batched_grad=True
    )


@each_variant
def test_second_order(route, op, options):
    with route.runs(op.raw, f"{op.raw}_backward"):
        assert gradgradcheck(
            lambda *inputs: op.function(*inputs, **options).sin(),
            points(op),
            check_fwd_over_rev=True,
        )


@each_variant
def test_third_order(route, op, options):
    with route.runs(op.raw, f"{op.raw}_backward"):
        assert gradgradcheck(gradient_function(op, options), points(op))


@each_variant
def test_composite_to_third_order(op, options):
    """torch.func's own gradients are as differentiable as autograd's."""
    first = torch.func.grad(lambda *t: op.function(*t, **options).sin().sum(), range_of(op))
    with Recorder() as recorder:
        assert gradgradcheck(lambda *inputs: first(*inputs), points(op))
    assert not recorder.names


def range_of(op):
    return tuple(range(op.arity))


@each_variant
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_second_derivative_at_guarded_points_is_finite(route, op, dtype, options):
    inputs = specials(op, dtype, only_finite=True)
    guarded = op.guard(oracle.Options(dtype, **options), *[t.double() for t in inputs])
    leaves = [tensor[guarded].requires_grad_() for tensor in inputs]
    upstream = torch.ones_like(leaves[0], requires_grad=True)
    with route.runs(op.raw):
        value = op.function(*leaves, **options)
        first = torch.autograd.grad(value, leaves, upstream, create_graph=True)
    for second in torch.autograd.grad(sum(first).sum(), [*leaves, upstream], allow_unused=True):
        bad = torch.zeros(1) if second is None else ~second.isfinite()
        assert not bad.any(), [tensor[bad] for tensor in leaves]


@pytest.mark.parametrize("op", EVERY_OP, ids=label)
def test_second_derivative_of_a_zero_upstream(route, op):
    """G1 holds for the graph of the gradient too: the where trap has a second order. Without a
    kernel not where the second derivative itself leaves the dtype's range."""
    inputs = specials(op, torch.float32, only_finite=True)
    near = torch.stack([(t == 0) | ((t.abs() > 1e-3) & (t.abs() < 20)) for t in inputs]).all(0)
    kept = near | (op.raw is not None)
    inputs = [tensor[kept].requires_grad_() for tensor in inputs]
    upstream = torch.zeros_like(inputs[0], requires_grad=True)
    with route.runs(op.raw):
        first = torch.autograd.grad(op.function(*inputs), inputs, upstream, create_graph=True)
    for gradient in torch.autograd.grad(sum(first).sum(), inputs, allow_unused=True):
        assert gradient is None or (gradient == 0).all()
