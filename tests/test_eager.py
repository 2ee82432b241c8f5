"""What else a tensor may carry in eager mode: subclasses, autocast, hooks, checkpoints."""

from decimal import Decimal

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import safeops
from safeops import _extension, _route
from tests.cases import DTYPES, OP
from tests.kernelless_cases import EVERY_OP
from tests.samples import label
from tests.test_transforms import X, operands, slopes

each_op = pytest.mark.parametrize("op", EVERY_OP, ids=label)


class Marked(torch.Tensor):
    pass


@each_op
def test_subclass_is_kept_and_differentiates(op):
    leaves = [t.as_subclass(Marked).requires_grad_() for t in operands(op)]
    value = op.function(*leaves)
    assert type(value) is Marked
    value.sum().backward()
    for leaf, slope in zip(leaves, slopes(op, operands(op)), strict=True):
        torch.testing.assert_close(leaf.grad.as_subclass(torch.Tensor), slope)


@each_op
def test_parameters_are_plain(route, op):
    inputs = [torch.nn.Parameter(t) for t in operands(op)]
    with route.runs(op.raw, f"{op.raw}_backward"):
        op.function(*inputs).sum().backward()
    for leaf, slope in zip(inputs, slopes(op, operands(op)), strict=True):
        torch.testing.assert_close(leaf.grad, slope)


@each_op
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=label)
def test_autocast_keeps_dtype_and_value(route, op, dtype, low):
    inputs = operands(op, dtype)
    expected = op.function(*inputs)
    with torch.autocast("cpu", dtype=low):
        value, gradients = route.both(op, inputs)
    assert torch.equal(value, expected)
    assert value.dtype is dtype
    assert all(gradient.dtype is dtype for gradient in gradients)


@each_op
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(route, op, mode):
    inputs = [t.requires_grad_() for t in operands(op)]
    expected = op.function(*inputs).detach()
    with mode(), route.runs(op.raw):
        value = op.function(*inputs)
    assert not value.requires_grad
    assert torch.equal(value, expected)


@each_op
def test_inference_tensors(route, op):
    with torch.inference_mode():
        inputs = [t.clone() for t in operands(op)]
    assert torch.equal(route.value(op, inputs), route.value(op, operands(op)))


@each_op
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(route, op, reentrant):
    inputs = [t.requires_grad_() for t in operands(op)]
    with route.runs(op.raw, f"{op.raw}_backward"):
        value = checkpoint(op.function, *inputs, use_reentrant=reentrant)
        gradients = (
            torch.autograd.grad(value.sum(), inputs) if not reentrant else backward(value, inputs)
        )
    for gradient, slope in zip(gradients, slopes(op, operands(op)), strict=True):
        torch.testing.assert_close(gradient, slope)


def backward(value, inputs):
    value.sum().backward()
    return [tensor.grad for tensor in inputs]


@each_op
def test_saved_tensors_on_cpu_or_packed(route, op):
    inputs = [t.requires_grad_() for t in operands(op)]
    pack, unpack = (lambda t: t.double().numpy()), (lambda a: torch.from_numpy(a).float())
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        value = op.function(*inputs)
    for gradient, slope in zip(
        torch.autograd.grad(value.sum(), inputs), slopes(op, operands(op)), strict=True
    ):
        torch.testing.assert_close(gradient, slope)


@each_op
def test_input_changed_in_place_is_noticed(route, op):
    """As in torch: a saved tensor that was overwritten gives an error, not a wrong gradient."""
    inputs = [t.clone().requires_grad_() for t in operands(op)]
    changed = [t * 1 for t in inputs]
    value = op.function(*changed)
    keeps_result = op.keeps_result and (op.raw is not None or route.name == "torch")
    (value if keeps_result else changed[-1]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


@each_op
def test_result_may_be_changed_in_place(route, op):
    inputs = [t.clone().requires_grad_() for t in operands(op)]
    if not op.keeps_result:
        op.function(*inputs).mul_(2).sum().backward()
        torch.testing.assert_close(inputs[0].grad, 2 * slopes(op, operands(op))[0])


@each_op
def test_backward_twice(route, op):
    inputs = [t.requires_grad_() for t in operands(op)]
    value = op.function(*inputs).sum()
    first = torch.autograd.grad(value, inputs, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(value, inputs)))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, inputs)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_jit_trace_takes_the_composite():
    """Unchecked: torch's own check compares the names of values, which differ from run to run."""
    traced = torch.jit.trace(safeops.safe_log, X, check_trace=False)
    assert torch.equal(traced(X), safeops.safe_log(X))
    assert "safeops::" not in str(traced.graph)


# --- why_not_kernel ----------------------------------------------------------------------------


def test_reason_without_kernels(monkeypatch):
    monkeypatch.setattr(_extension, "reason", "built without them")
    assert safeops.why_not_kernel(X) == "built without them"


def test_plain_tensors_take_the_kernel(kernel):
    assert safeops.why_not_kernel(X, torch.nn.Parameter(X)) is None
    assert safeops.why_not_kernel(*[X.to(dtype) for dtype in DTYPES]) is None


def test_numbers_and_integers_are_no_obstacle(kernel):
    assert safeops.why_not_kernel(X, 2.0, 3, True) is None
    assert safeops.why_not_kernel(X.long(), X) is None


REASONS = {
    "Marked": lambda: X.as_subclass(Marked),
    "complex64": lambda: X.to(torch.complex64),
    "meta": lambda: X.to("meta"),
    "sparse": lambda: X.to_sparse(),
}


@pytest.mark.parametrize("word", REASONS)
def test_reason_names_what_is_in_the_way(kernel, word):
    assert word in safeops.why_not_kernel(X, REASONS[word]())


def test_reason_inside_a_transform(kernel):
    seen = []
    torch.func.vmap(lambda x: seen.append(safeops.why_not_kernel(x)) or x)(X)
    assert "torch.func" in seen[0]
    assert not _route.transforms_active()


def test_reason_under_compile(kernel):
    @torch.compile(backend="eager", fullgraph=True)
    def function(x):
        return x + (1 if safeops.why_not_kernel(x) is None else 2)

    assert torch.equal(function(X), X + 2)


def test_gradient_only_to_what_asks(route):
    x, y = X.clone().requires_grad_(), X.clone()
    with route.runs("div", "div_backward"):
        safeops.safe_div(x, y).sum().backward()
    assert y.grad is None
    torch.testing.assert_close(x.grad, slopes(OP["safe_div"], [X, X])[0])


# --- what once went wrong ----------------------------------------------------------------------


def test_more_dimensions_than_the_kernels_walk(kernel):
    with pytest.raises(RuntimeError, match="at most 64 dimensions, got 70"):
        safeops.safe_log(torch.ones([1] * 70))


def test_a_raw_backward_that_nobody_wants(kernel):
    with pytest.raises(RuntimeError, match="no gradient is wanted"):
        torch.ops.safeops.div_backward(X, X, X, 0.0, 0.0, 0.0, False, False)


def test_numbers_follow_the_tensor_and_not_the_default_device(any_route):
    with torch.device("meta"):
        assert torch.equal(safeops.safe_div(X, 2.0), X / 2)
        assert torch.equal(safeops.safe_div(X.long(), 2), X.long() / 2)


def test_options_are_checked_whatever_the_cache_holds(route):
    safeops.safe_log(X, eps=0.25)
    for eps in (Decimal("0.25"), 0.25 + 0j):
        with pytest.raises(TypeError, match="eps"):
            safeops.safe_log(X, eps=eps)


def test_a_bound_whose_root_is_beyond_the_dtype(route):
    zeros = torch.zeros(2, dtype=torch.float16)
    assert torch.equal(safeops.safe_sqrt(zeros, eps=1e30), torch.full_like(zeros, 65504))


def test_create_graph_does_not_change_the_gradient(route):
    """Nor does it where x / y**2 overflows on torch's way to g * x / y**2."""
    x, y, g = (torch.tensor(v, dtype=torch.float64) for v in (1.0, 1e-160, 1e-300))
    y.requires_grad_()
    (gradient,) = torch.autograd.grad(safeops.safe_div(x, y), y, g, create_graph=True)
    torch.testing.assert_close(gradient.item(), -1e20)


def test_batched_gradients_of_a_broadcast_operand(route):
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0, requires_grad=True)
    ones = torch.eye(3)
    (ours,) = torch.autograd.grad(safeops.safe_div(x, y), y, ones, is_grads_batched=True)
    assert torch.equal(ours, -x / 4)
