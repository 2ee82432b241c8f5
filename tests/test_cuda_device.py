"""What a GPU brings besides its kernels: streams, graphs, several devices, a compiler of its own.

Every call is forward and backward.
"""
# ruff: noqa: F811  (fixtures)

import threading

import pytest
import torch

import safeops
from safeops import finite_clip, log_softmax, logsumexp, safe_div, safe_log, safe_sqrt, softmax
from tests.cases import DTYPES
from tests.cuda_devices import gpu  # noqa: F401
from tests.row_samples import random_mask, scores
from tests.samples import label
from tests.test_shapes import assert_same

pytestmark = pytest.mark.cuda

SHAPE = (9, 700)
LONG = (2, 40_000)  # rows in chunks
WAIT = 20_000_000  # cycles of a GPU, about 10 ms

# (x, y, mask) -> value; y and mask broadcast
CALLS = {
    "div": lambda x, y, mask: safe_div(x, y),
    "div by row": lambda x, y, mask: safe_div(x, y[:1]),
    "div held": lambda x, y, mask: safe_div(x, y, eps=0.5),
    "div by number": lambda x, y, mask: safe_div(x, 3.0),
    "log": lambda x, y, mask: safe_log(x),
    "log, linear": lambda x, y, mask: safe_log(x.T, eps=0.1, extend="linear"),
    "sqrt": lambda x, y, mask: safe_sqrt(x, eps=1e-3),
    "finite_clip": lambda x, y, mask: finite_clip(x, -1.0, 2.0, nan=0.0),
    "softmax": lambda x, y, mask: softmax(x, -1),
    "softmax across": lambda x, y, mask: softmax(x, 0, mask=mask),
    "log_softmax": lambda x, y, mask: log_softmax(x, -1, mask=mask),
    "log_softmax across": lambda x, y, mask: log_softmax(x, 0),
    "logsumexp": lambda x, y, mask: logsumexp(x, -1, mask=mask),
    "logsumexp of all": lambda x, y, mask: logsumexp(x[:, ::2], (0, 1)),
}
each_call = pytest.mark.parametrize("call", CALLS)
each_shape = pytest.mark.parametrize("shape", [SHAPE, LONG], ids=str)


def inputs(shape, device, seed=0, dtype=torch.float32):
    """x, y and a mask."""
    x, y = (scores(*shape, dtype=dtype, seed=seed + k).to(device) for k in range(2))
    return x, y, random_mask(*shape, seed=seed).to(device)


def step(call, x, y, mask):
    """The value, and the gradients to x and y, with an upstream gradient that the value fixes."""
    x, y = (t.detach().requires_grad_() for t in (x, y))
    value = CALLS[call](x, y, mask)
    upstream = value.detach().nan_to_num(0.0, 0.0, 0.0).cos()
    gradients = torch.autograd.grad(value, (x, y), upstream, allow_unused=True)
    return [value.detach(), *(gradient for gradient in gradients if gradient is not None)]


def assert_all_same(ours, theirs):
    assert len(ours) == len(theirs)
    for actual, expected in zip(ours, theirs, strict=True):
        assert_same(actual, expected)


# --- streams -------------------------------------------------------------------------------------


@each_call
@each_shape
def test_the_current_stream(gpu, call, shape):
    """What comes late on this stream is there when the op runs."""
    given = inputs(shape, gpu)
    expected, late = step(call, *given), [torch.zeros_like(t) for t in given]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT)
        for to, value in zip(late, given, strict=True):
            to.copy_(value)
        ours = step(call, *late)
        done = stream.record_event()
    torch.cuda.current_stream().wait_event(done)
    assert_all_same(ours, expected)


@each_call
@each_shape
def test_nothing_waits(gpu, call, shape):
    given = inputs(shape, gpu)
    expected = step(call, *given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = step(call, *given)
        with pytest.raises(RuntimeError, match="synchroniz"):
            ours[0].sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_all_same(ours, expected)


@each_call
@each_shape
def test_in_a_graph(gpu, call, shape):
    """Captured once, replayed on other numbers."""
    given, other = inputs(shape, gpu), inputs(shape, gpu, seed=7)
    expected = step(call, *other)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        step(call, *given)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours = step(call, *given)
    for to, value in zip(given, other, strict=True):
        to.copy_(value)
    graph.replay()
    assert_all_same(ours, expected)


def test_threads_with_streams_of_their_own(gpu):
    expected = [[step(call, *inputs(SHAPE, gpu, seed=k)) for call in CALLS] for k in range(4)]
    torch.cuda.synchronize()
    found = [None] * 4

    def work(k):
        with torch.cuda.device(gpu), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[k] = [step(call, *inputs(SHAPE, gpu, seed=k)) for call in CALLS]
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert_all_same(one, other)


# --- devices -------------------------------------------------------------------------------------


@each_call
def test_a_device_that_is_not_the_current_one(gpu, call):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    expected = step(call, *inputs(SHAPE, first))
    with torch.cuda.device(first):
        ours = step(call, *inputs(SHAPE, second))
        assert torch.cuda.current_device() == 0
    assert all(t.device == second for t in ours)
    assert_all_same([t.cpu() for t in ours], [t.cpu() for t in expected])


def test_the_route(gpu):
    x, y, _ = inputs(SHAPE, gpu)
    assert safeops.why_not_kernel(x) is None
    assert safeops.why_not_kernel(x, y, torch.tensor(2.0), 3.0) is None
    assert "several devices" in safeops.why_not_kernel(x, y.cpu())
    assert "several devices" in safeops.why_not_kernel(y.cpu(), x)
    assert safeops.why_not_kernel(x.to(torch.complex64)) is not None


def test_tensors_of_two_devices(gpu):
    """An error that says so, from the functions and from the raw ops."""
    x, y, mask = inputs(SHAPE, gpu)
    raw = torch.ops.safeops
    with pytest.raises(RuntimeError, match="expected both tensors on one device, got cuda"):
        safe_div(x, y.cpu())
    with pytest.raises(RuntimeError, match="expected both tensors on one device, got cpu"):
        safe_div(x.cpu(), y)
    with pytest.raises(RuntimeError, match="same device"):
        softmax(x, -1, mask=mask.cpu())
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        raw.div(x, y.cpu(), 0.0, 0.0, 0.0)
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        raw.softmax(x, 1, mask.cpu())
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        raw.softmax_backward(x, y.cpu(), 1, None)


# --- what else a call may meet -------------------------------------------------------------------


@each_call
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
def test_nothing(gpu, call, shape):
    ours, expected = (step(call, *inputs(shape, device)) for device in (gpu, "cpu"))
    assert all(t.device == gpu for t in ours)
    assert_all_same([t.cpu() for t in ours], expected)


@each_call
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_autocast_keeps_dtype_and_value(gpu, call, dtype):
    given = inputs(SHAPE, gpu, dtype=dtype)
    expected = step(call, *given)
    for low in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=low):
            assert_all_same(step(call, *given), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("call", ["softmax", "softmax across", "log_softmax", "logsumexp"])
def test_compiled(gpu, call):
    """The row ops keep their kernels, and so their bits."""
    torch.compiler.reset()
    x, y, mask = inputs(SHAPE, gpu)
    compiled = torch.compile(CALLS[call], fullgraph=True)
    leaves = [x.detach().requires_grad_() for _ in range(2)]
    values = compiled(leaves[0], y, mask), CALLS[call](leaves[1], y, mask)
    assert_same(*(value.detach() for value in values))
    upstream = torch.ones_like(values[0])
    assert_same(
        *(
            torch.autograd.grad(value, leaf, upstream)[0]
            for value, leaf in zip(values, leaves, strict=True)
        )
    )
