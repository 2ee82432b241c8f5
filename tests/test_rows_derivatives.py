"""G5 for the row ops: derivatives of higher order, against differences and at singular points."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tests.cases import DTYPES
from tests.routes import Recorder
from tests.row_cases import LOGSUMEXP, ROW_OPS
from tests.row_samples import masked_specials, normal
from tests.samples import label

# torch's own forward-mode formulas come from a script that warns
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

MASK = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()  # a row of which one is masked, a guarded one
VARIANTS = [
    (op, options)
    for op in ROW_OPS
    for options in ({"dim": 1}, {"dim": 0}, {"dim": 1, "mask": MASK}, {"dim": 0, "mask": MASK})
]
VARIANTS += [
    (LOGSUMEXP, {"dim": (0, 1)}),
    (LOGSUMEXP, {"dim": (1,), "keepdim": True, "mask": MASK[:, :1]}),
]
each_variant = pytest.mark.parametrize(
    ("op", "options"), VARIANTS, ids=lambda v: getattr(v, "name", None) or "-".join(v)
)


def point():
    return normal(2, 3, seed=4).requires_grad_()


def function(op, options):
    """The op, with 0 for the -inf of guarded rows: differences of those are no numbers."""

    def call(x):
        value = op.function(x, **options)
        return torch.where(value > -torch.inf, value, 0.0)

    return call


def wavy(op, options):
    """Of which no derivative is trivial."""
    return lambda x: function(op, options)(x).mul(1.5).sin()


def gradient_of(op, options):
    """The gradient of the sum, itself to be differentiated."""

    def call(x):
        return torch.autograd.grad(wavy(op, options)(x).sum(), x, create_graph=True)[0]

    return call


@each_variant
def test_first_order(route, op, options):
    with route.runs(op.raw, op.backward):
        assert gradcheck(function(op, options), point(), check_forward_ad=True)


@each_variant
def test_second_order(route, op, options):
    with route.runs(op.raw, op.backward):
        assert gradgradcheck(wavy(op, options), point(), check_fwd_over_rev=True)


@each_variant
def test_third_order(route, op, options):
    with route.runs(op.raw, op.backward):
        assert gradgradcheck(gradient_of(op, options), point())


@each_variant
def test_batched(route, op, options):
    """Not recorded: the batching of is_grads_batched does not see through a dispatch mode."""
    assert gradcheck(
        function(op, options),
        point(),
        check_batched_grad=True,
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(wavy(op, options), point(), check_batched_grad=True)


@each_variant
def test_composite_to_third_order(op, options):
    first = torch.func.grad(lambda x: wavy(op, options)(x).sum())
    with Recorder() as recorder:
        assert gradgradcheck(first, point())
    assert not recorder.names


@pytest.mark.parametrize("op", ROW_OPS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
@pytest.mark.parametrize("zero", [False, True], ids=["upstream", "zero upstream"])
def test_second_derivatives_at_singular_points(route, op, dtype, zero):
    """Finite wherever no NaN takes part, +inf and -inf included; with a zero upstream also there,
    and then all of them are 0."""
    x, mask = masked_specials(dtype)
    nan = (x.isnan() & mask).any(-1)
    kept = (slice(None) if zero else ~nan) if dtype is torch.float64 or zero else ~nan
    x, mask, nan = x[kept].requires_grad_(), mask[kept], nan[kept]
    value = op.function(x, -1, mask=mask)
    upstream = torch.full_like(value, 0.0 if zero else 1.0, requires_grad=True)
    with route.runs(*[op.backward] * op.keeps_result):  # through the result that was kept
        (first,) = torch.autograd.grad(value, x, upstream, create_graph=True)
        second, to_upstream = torch.autograd.grad(
            first.sum(), [x, upstream], allow_unused=True, materialize_grads=True
        )
    assert (first == 0).all() if zero else first.isfinite().all()
    assert second.isfinite().all()
    assert to_upstream[~nan].isfinite().all()
    assert not zero or (second == 0).all()


@pytest.mark.parametrize("op", ROW_OPS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_create_graph_does_not_change_the_gradient(route, op, dtype):
    """The formulas give it then."""
    x = normal(5, 100).to(dtype).requires_grad_()
    value = op.function(x, -1)
    upstream = torch.randn(value.shape).to(dtype)
    plain, graph = (
        torch.autograd.grad(value, x, upstream, retain_graph=True, create_graph=create)[0]
        for create in (False, True)
    )
    eps = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(graph, plain, rtol=eps, atol=eps)
