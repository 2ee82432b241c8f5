"""torch.func, forward mode, batched gradients: the composite, with the same numbers."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad

from tests import oracle
from tests.cases import OPS
from tests.kernelless_cases import EVERY_OP
from tests.routes import Recorder
from tests.samples import label

# torch's own forward-mode formulas come from a script that warns
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")
each_op = pytest.mark.parametrize("op", EVERY_OP, ids=label)
X = torch.tensor([0.5, 0.0, 2.0, -1.0, 3.0])
Y = torch.tensor([2.0, 0.5, 0.0, -4.0, 1.0])


def operands(op, dtype=torch.float32):
    return [t.to(dtype, copy=True) for t in (X, Y)[: op.arity]]


def slopes(op, inputs):
    """The exact derivative to each input."""
    wide = [tensor.double() for tensor in inputs]
    options = oracle.Options(inputs[0].dtype, **op.options[0])
    guarded = op.guard(options, *wide)
    inside = [torch.where(guarded, op.safe, tensor) for tensor in wide]
    one = torch.ones_like(wide[0])
    outside = op.outside_gradients(options, one, *wide)
    pairs = zip(op.gradients, outside, strict=True)
    return [torch.where(guarded, out, f(torch, one, *inside)).float() for f, out in pairs]


@pytest.fixture(autouse=True)
def no_kernel_inside_transforms(request):
    """Under a transform no raw op may run: none of them can be transformed."""
    recorder = None if "unrecorded" in request.keywords else Recorder()
    if recorder is None:
        yield
        return
    with recorder:
        yield
    assert not recorder.names, f"inside a transform ran {recorder.names}"


def total(op):
    return lambda *inputs: op.function(*inputs).sum()


def indices(op):
    return tuple(range(op.arity))


def assert_all_close(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@each_op
def test_grad(op):
    inputs = operands(op)
    assert_all_close(func.grad(total(op), indices(op))(*inputs), slopes(op, inputs))


@each_op
def test_vmap(op):
    inputs = operands(op)
    expected = torch.stack(
        [func.vmap(op.function)(*[t[i : i + 1] for t in inputs])[0] for i in range(5)]
    )
    assert torch.equal(func.vmap(op.function)(*inputs), expected)


@each_op
def test_vmap_over_another_dim(op):
    inputs = [t.expand(3, 5) for t in operands(op)]
    value = func.vmap(op.function, in_dims=1, out_dims=1)(*inputs)
    assert torch.equal(value, func.vmap(op.function)(*inputs))


@each_op
def test_vmap_of_grad(op):
    inputs = operands(op)
    assert_all_close(func.vmap(func.grad(op.function, indices(op)))(*inputs), slopes(op, inputs))


@each_op
def test_grad_of_vmap(op):
    inputs = operands(op)
    function = func.grad(lambda *t: func.vmap(op.function)(*t).sum(), indices(op))
    assert_all_close(function(*inputs), slopes(op, inputs))


def test_vmap_of_one_operand():
    op = OPS[2]
    value = func.vmap(op.function, in_dims=(0, None))(X, torch.tensor(2.0))
    assert torch.equal(value, X / 2)
    value = func.vmap(lambda x: op.function(1.0, x))(Y)
    assert torch.equal(value, torch.where(Y == 0, 0.0, 1 / Y))


@each_op
def test_jvp(op):
    inputs = operands(op)
    _, tangent = func.jvp(op.function, tuple(inputs), tuple(torch.ones_like(t) for t in inputs))
    torch.testing.assert_close(tangent, sum(slopes(op, inputs)))


@each_op
@pytest.mark.parametrize("jacobian", [func.jacrev, func.jacfwd], ids=["jacrev", "jacfwd"])
def test_jacobian(op, jacobian):
    inputs = operands(op)
    matrices = jacobian(op.function, indices(op))(*inputs)
    assert_all_close(matrices, [torch.diag(slope) for slope in slopes(op, inputs)])


@each_op
def test_hessian(op):
    """Against autograd's own double backward."""
    inputs = operands(op, torch.float64)
    ours = func.hessian(total(op), indices(op))(*inputs)
    for i in indices(op):
        assert_all_close(ours[i], torch.autograd.functional.hessian(total(op), tuple(inputs))[i])


test_hessian = pytest.mark.unrecorded(test_hessian)


@each_op
def test_dual_numbers(op):
    inputs = operands(op)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, torch.ones_like(t)) for t in inputs]
        value, tangent = forward_ad.unpack_dual(op.function(*duals))
    torch.testing.assert_close(tangent, sum(slopes(op, inputs)))
    torch.testing.assert_close(value, func.vmap(op.function)(*inputs))


@each_op
def test_tangent_is_not_lost_on_one_input(op):
    """The other inputs carry none: a lost tangent would come back as None."""
    for index in indices(op):
        inputs = operands(op)
        with forward_ad.dual_level():
            inputs[index] = forward_ad.make_dual(inputs[index], torch.ones(5))
            tangent = forward_ad.unpack_dual(op.function(*inputs)).tangent
        torch.testing.assert_close(tangent, slopes(op, operands(op))[index])


@pytest.mark.unrecorded
@each_op
def test_batched_gradients(route, op):
    inputs = [t.requires_grad_() for t in operands(op)]
    value = op.function(*inputs)
    rows = torch.autograd.grad(value, inputs, torch.eye(5), is_grads_batched=True)
    assert_all_close(rows, [torch.diag(slope) for slope in slopes(op, operands(op))])


@pytest.mark.unrecorded
@each_op
@pytest.mark.parametrize("vectorize", [False, True])
def test_functional_hessian(route, op, vectorize):
    inputs = tuple(operands(op, torch.float64))
    ours = torch.autograd.functional.hessian(total(op), inputs, vectorize=vectorize)
    expected = func.hessian(total(op), indices(op))(*inputs)
    for i in indices(op):
        assert_all_close(ours[i], expected[i])


@pytest.mark.unrecorded
def test_per_sample_gradients_of_a_model():
    """What people use torch.func for: a guarded sample must not spoil the others."""
    weight, data = torch.tensor([1.0, -2.0]), torch.tensor([[1.0, 0.0], [1.0, 1.0], [4.0, 1.0]])
    loss = lambda w, x: OPS[0].function((w * x).sum())  # noqa: E731
    gradients = func.vmap(func.grad(loss), in_dims=(None, 0))(weight, data)
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.5]])
    torch.testing.assert_close(gradients, expected)


def test_private_names_of_torch_exist():
    """safeops/_route.py takes them; a torch without them must fail here, not at a user's."""
    from torch._C import _are_functorch_transforms_active, _get_tracing_state

    assert not _are_functorch_transforms_active()
    assert func.vmap(lambda x: x * _are_functorch_transforms_active())(X[:1]) == X[:1]
    assert _get_tracing_state() is None
    assert forward_ad._current_level == -1
    with forward_ad.dual_level():
        assert forward_ad._current_level == 0
