"""What else a call of a row op meets in eager mode: modes, autocast, hooks, checkpoints, memory."""

import pytest
import torch
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import safeops
from tests.cases import DTYPES
from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.row_samples import random_mask, scores, upstream_like
from tests.samples import label
from tests.test_eager import Marked
from tests.test_memory import saved, size

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
masks = pytest.mark.parametrize(
    "mask",
    [None, random_mask(4, 50), random_mask(50), random_mask(4, 1)],
    ids=["", "", "row", "col"],
)


def gradient(op, x, mask=None, **how):
    leaf = x.detach().requires_grad_()
    value = op.function(leaf, -1, mask=mask)
    return torch.autograd.grad(value, leaf, upstream_like(op, x, -1).to(value), **how)[0]


# --- routes ------------------------------------------------------------------------------------


@each_op
def test_subclasses_are_kept_and_differentiate(op):
    x, mask = scores(4, 50), random_mask(4, 50)
    leaf = x.as_subclass(Marked).requires_grad_()
    value = op.function(leaf, -1, mask=mask)
    assert type(value) is Marked
    (ours,) = torch.autograd.grad(value.sum(), leaf)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(op.function(leaf, -1, mask=mask).sum(), leaf)
    torch.testing.assert_close(ours.as_subclass(torch.Tensor), expected)


@each_op
def test_parameters_are_plain(route, op):
    parameter = torch.nn.Parameter(scores(4, 50))
    with route.runs(op.raw, op.backward):
        op.function(parameter, -1).sum().backward()
    assert parameter.grad.shape == (4, 50)


@each_op
@each_dtype
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=label)
def test_autocast_keeps_dtype_and_value(route, op, dtype, low):
    x, mask = scores(4, 50, dtype=dtype), random_mask(4, 50)
    expected = op.function(x, -1, mask=mask)
    with torch.autocast("cpu", dtype=low):
        value, (gradient,) = route.both(op, [x], dim=-1, mask=mask)
    assert torch.equal(value, expected)
    assert (value.dtype, gradient.dtype) == (dtype, dtype)


@each_op
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(route, op, mode):
    x = scores(4, 50).requires_grad_()
    expected = op.function(x, -1).detach()
    with mode(), route.runs(op.raw):
        value = op.function(x, -1)
    assert not value.requires_grad
    assert torch.equal(value, expected)


@each_op
def test_masks_take_no_gradient(route, op):
    """One that was computed from x is as good as any."""
    x = scores(4, 50).requires_grad_()
    value = op.function(x, -1, mask=x > 0)
    (ours,) = torch.autograd.grad(value, x, upstream_like(op, x.detach(), -1))
    assert torch.equal(ours, gradient(op, x, x.detach() > 0))


@each_op
def test_why_not_kernel_takes_a_mask(kernel, op):
    x, mask = scores(4, 50), random_mask(4, 50)
    assert safeops.why_not_kernel(x, mask) is None
    assert "Marked" in safeops.why_not_kernel(x.as_subclass(Marked), mask)


# --- autograd ----------------------------------------------------------------------------------


@each_op
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(route, op, reentrant):
    x, mask = scores(4, 50).requires_grad_(), random_mask(4, 50)
    with route.runs(op.raw, op.backward):
        value = checkpoint(lambda t: op.function(t, -1, mask=mask), x, use_reentrant=reentrant)
        value.backward(upstream_like(op, x.detach(), -1).to(value))
    assert torch.equal(x.grad, gradient(op, x, mask))


@each_op
def test_saved_tensors_hooks(route, op):
    """Packed to numpy and back, the mask too."""
    x, mask = scores(4, 50), random_mask(4, 50)
    pack, unpack = (lambda t: t.numpy().copy()), torch.from_numpy
    leaf = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        value = op.function(leaf, -1, mask=mask)
    (ours,) = torch.autograd.grad(value, leaf, upstream_like(op, x, -1))
    assert torch.equal(ours, gradient(op, x, mask))


@each_op
@pytest.mark.parametrize("which", ["saved", "mask"])
def test_what_is_changed_in_place_is_noticed(route, op, which):
    x, mask = scores(4, 50).requires_grad_(), random_mask(4, 50)
    changed = x * 1
    value = op.function(changed, -1, mask=mask)
    if which == "mask":
        mask.logical_not_()
    else:
        (value if op.keeps_result else changed).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


@pytest.mark.parametrize("op", [SOFTMAX, LOG_SOFTMAX], ids=label)
def test_the_input_may_be_changed_in_place(route, op):
    """As with torch's: backward has the result."""
    x = scores(4, 50).requires_grad_()
    changed = x * 1
    value = op.function(changed, -1)
    changed.zero_()
    (ours,) = torch.autograd.grad(value, x, upstream_like(op, x.detach(), -1))
    assert torch.equal(ours, gradient(op, x))


@each_op
def test_backward_twice(route, op):
    x = scores(4, 50).requires_grad_()
    value = op.function(x, -1).sum()
    first, second = (torch.autograd.grad(value, x, retain_graph=i == 0)[0] for i in range(2))
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
@each_op
def test_jit_trace_takes_the_composite(op):
    x, mask = scores(4, 50), random_mask(4, 50)
    traced = torch.jit.trace(lambda t, m: op.function(t, -1, mask=m), (x, mask), check_trace=False)
    torch.testing.assert_close(traced(x, mask), op.function(x, -1, mask=mask))
    assert "safeops::" not in str(traced.graph)


# --- memory ------------------------------------------------------------------------------------


@each_op
@each_dtype
@masks
def test_what_backward_keeps(route, op, dtype, mask):
    """As many bytes as torch's own op, and the mask as it was given."""
    x = scores(4, 50, dtype=dtype).requires_grad_()
    kept = saved(lambda t: op.function(t, -1, mask=mask), x)
    extra = 0 if mask is None else mask.nbytes
    assert size(kept) == size(saved(lambda t: op.torch(t, -1), x)) + extra
    with torch.no_grad():
        assert not saved(lambda t: op.function(t, -1, mask=mask), x)


def allocated(function):
    """Bytes that torch's allocator gave out during the call; the result's are among them."""
    with profile(profile_memory=True) as seen:
        function()
    memory = [event for event in seen.events() if event.name == "[memory]"]
    return sum(max(event.cpu_memory_usage, 0) for event in memory)


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


LAID = {
    "rows": lambda: scores(300, 1000),
    "columns": lambda: scores(1000, 300).T,
    "every second": lambda: scores(300, 2000)[:, ::2],
}


@each_op
@pytest.mark.parametrize("laid", LAID)
@pytest.mark.parametrize("dim", [0, 1])
def test_kernels_run_alone_and_allocate_the_result(kernel, op, laid, dim):
    """No op of torch's before or after them, no expanded mask; an input whose rows no kernel walks
    may be copied once."""
    x, mask = LAID[laid](), random_mask(300, 1)
    leaf = x.detach().requires_grad_()
    with Names() as names:
        value = op.function(leaf, dim, mask=mask)
        upstream = torch.ones_like(value)
        del names.seen[1:]
        torch.autograd.grad(value, leaf, upstream)
    assert [name for name in names.seen if not name.endswith("::detach")] == [
        f"safeops::{op.raw}",
        f"safeops::{op.backward}",
    ]
    used = allocated(lambda: op.function(x, dim, mask=mask))
    assert used <= value.nbytes + (laid != "rows") * x.numel() * 4 + 2**16


@each_op
def test_long_rows_need_no_buffer_of_their_length(kernel, op):
    x = scores(2, 500_000)
    used = allocated(lambda: op.function(x, -1))
    assert used <= (0 if op.reduces else x.nbytes) + 2**16


def test_logsumexp_over_several_dims_copies_at_most_once(kernel):
    x = scores(100, 30, 100)
    for dims in ((0, 1), (1, 2), (0, 2), (0, 1, 2)):
        assert allocated(lambda: LOGSUMEXP.function(x, dims)) <= x.nbytes + 2**16  # noqa: B023
