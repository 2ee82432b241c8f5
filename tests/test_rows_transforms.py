"""The row ops under torch.func, forward mode and batched gradients: the composite."""

import math

import pytest
import torch
from torch import func
from torch.autograd import forward_ad

from tests.routes import Recorder
from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.row_samples import normal, random_mask
from tests.samples import label

# torch's own forward-mode formulas come from a script that warns
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")
each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dim = pytest.mark.parametrize("dim", [0, 1, -1])
X = normal(4, 5).float()
MASK = random_mask(4, 5)
MASK[2] = False


@pytest.fixture(autouse=True)
def no_kernel_inside_transforms(request):
    if "unrecorded" in request.keywords:
        yield
        return
    with Recorder() as recorder:
        yield
    assert not recorder.names, f"inside a transform ran {recorder.names}"


def reference(op, x, dim, mask=None):
    """torch's own op where no row is guarded: the float64 derivatives of it are right."""
    x = x if mask is None else torch.where(mask, x, -math.inf)
    return op.torch(x, dim)


def total(op, dim):
    return lambda x: (op.function(x, dim) * torch.linspace(1, 2, 5)[0 if op.reduces else ...]).sum()


@each_op
@each_dim
def test_vmap(op, dim):
    x = normal(3, 20).view(3, 4, 5)
    expected = torch.stack([reference(op, one, dim) for one in x])
    torch.testing.assert_close(func.vmap(lambda t: op.function(t, dim))(x), expected)
    turned = func.vmap(lambda t: op.function(t, dim), in_dims=2, out_dims=0)(x.permute(1, 2, 0))
    torch.testing.assert_close(turned, expected)


@each_op
def test_vmap_to_nothing(op):
    """A vector of numbers, each of no dimensions."""
    value = func.vmap(lambda t: op.function(t, 0))(X[0])
    expected = {SOFTMAX: torch.ones(5), LOG_SOFTMAX: torch.zeros(5), LOGSUMEXP: X[0]}
    torch.testing.assert_close(value, expected[op])


@each_op
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 1)], ids=str)
def test_vmap_of_a_mask(op, in_dims):
    """Batched with x, one for all, many for one x; a guarded row among them."""
    pick = lambda t, d, i: t if d is None else t.select(d, i)  # noqa: E731
    count = 5 if in_dims == (1, 1) else 4
    mask = MASK if in_dims[1] is not None else MASK[1]
    rows = [(pick(X, in_dims[0], i), pick(mask, in_dims[1], i)) for i in range(count)]
    value = func.vmap(lambda t, m: op.function(t, -1, mask=m), in_dims)(X, mask)
    with torch.no_grad():
        expected = torch.stack([op.torch(torch.where(m, t, -math.inf), -1) for t, m in rows])
    expected = torch.where(expected.isnan(), op.outside, expected)
    if op is SOFTMAX:
        expected = expected.nan_to_num(0.0)
    torch.testing.assert_close(value, expected)


@each_op
@each_dim
def test_grad_and_jacobians(op, dim):
    x = X.double()
    call, own = (lambda t: op.function(t, dim)), (lambda t: op.torch(t, dim))
    expected = torch.autograd.functional.jacobian(own, x)
    for jacobian in (func.jacrev, func.jacfwd):
        torch.testing.assert_close(jacobian(call)(x), expected)
    weights = torch.randn(own(x).shape, dtype=x.dtype)
    gradient = func.grad(lambda t: (call(t) * weights).sum())(x)
    torch.testing.assert_close(gradient, torch.tensordot(weights, expected, weights.dim()))


@each_op
def test_vmap_of_grad_is_grad_of_vmap(op):
    weights = torch.linspace(1, 2, 5)
    loss = lambda t: (op.function(t, -1) * weights).sum()  # noqa: E731
    each = func.vmap(func.grad(loss))(X)
    together = func.grad(lambda t: func.vmap(loss)(t).sum())(X)
    torch.testing.assert_close(each, together)
    own = func.vmap(func.grad(lambda t: (op.torch(t, -1) * weights).sum()))(X)
    torch.testing.assert_close(each, own)


@each_op
@each_dim
def test_forward_mode(op, dim):
    """jvp and dual numbers; under a mask with a guarded row the tangents there are 0."""
    tangent = torch.randn_like(X)
    value, moved = func.jvp(lambda t: op.function(t, dim), (X,), (tangent,))
    expected = func.jvp(lambda t: op.torch(t, dim), (X,), (tangent,))
    torch.testing.assert_close((value, moved), expected)
    with forward_ad.dual_level():
        dual = op.function(forward_ad.make_dual(X, tangent), dim)
        torch.testing.assert_close(tuple(forward_ad.unpack_dual(dual)), expected)
        masked = op.function(forward_ad.make_dual(X, tangent), -1, mask=MASK)
        moved = forward_ad.unpack_dual(masked).tangent
    assert (moved[2] == 0).all()
    assert op.reduces or (moved[~MASK] == 0).all()


@each_op
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "masked"])
def test_hessian(op, mask):
    """By torch.func and by autograd's own double backward."""
    x, weights = X.double(), torch.linspace(1, 2, 4, dtype=torch.float64)

    def loss(t):
        value = op.function(t, -1, mask=mask)
        return torch.tensordot(weights, torch.where(value > -math.inf, value, 0.0).sin(), 1).sum()

    expected = torch.autograd.functional.hessian(loss, x)
    torch.testing.assert_close(func.hessian(loss)(x), expected)
    assert expected.isfinite().all()
    again = torch.autograd.functional.hessian(loss, x, vectorize=True)
    torch.testing.assert_close(again, expected)


test_hessian = pytest.mark.unrecorded(test_hessian)


@pytest.mark.unrecorded
@each_op
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "masked"])
def test_batched_gradients(route, op, mask):
    x = X.clone().requires_grad_()
    value = op.function(x, -1, mask=mask)
    upstreams = torch.randn(3, *value.shape)
    (rows,) = torch.autograd.grad(value, x, upstreams, is_grads_batched=True, retain_graph=True)
    for row, upstream in zip(rows, upstreams, strict=True):
        (one,) = torch.autograd.grad(value, x, upstream, retain_graph=True)
        torch.testing.assert_close(row, one)


@each_op
def test_composition_of_transforms(op):
    """A vmap over a jvp of a grad: no level loses the tangent of another."""
    weights = torch.linspace(1, 2, 5, dtype=torch.float64)
    x, tangents = X.double(), torch.eye(5, dtype=torch.float64)
    call = lambda f: lambda t: (f(t, -1) * weights).sum()  # noqa: E731
    ours, theirs = (
        func.vmap(lambda v, f=f: func.jvp(func.grad(call(f)), (x[0],), (v,))[1])(tangents)
        for f in (op.function, op.torch)
    )
    torch.testing.assert_close(ours, theirs)


@each_op
def test_functional_call_with_per_sample_gradients(op):
    """What people use torch.func for: a sample without a single element must not spoil others."""
    weight, mask = torch.randn(5, 5), MASK.clone()

    def loss(w, x, m):
        value = op.function(w @ x, 0, mask=m)
        return torch.where(value > -math.inf, value, 0.0).square().sum()

    gradients = func.vmap(func.grad(loss), in_dims=(None, 0, 0))(weight, X, mask)
    assert gradients.isfinite().all()
    assert (gradients[2] == 0).all()
    assert (gradients[[0, 1, 3]] != 0).any(-1).any(-1).all()
