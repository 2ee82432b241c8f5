"""The multi-tensor kernels of a GPU, on one or emulated: what they write, and when."""
# ruff: noqa: F811  (fixtures)

import math
import warnings

import pytest
import torch

import safeops
from tests.gradient_devices import (  # noqa: F401
    assert_clipped,
    bits,
    contents,
    device,
    each_dtype,
    edges,
    gpu,
    host,
    on,
    placed,
    shifted,
    ulps,
)
from tests.gradient_samples import assert_close, assert_norm, draw, exact_norm, mpmath, scaled

# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["skip", "drop", "keep", "raise"])
def test_nothing_is_written_without_need(device, policy):
    params = on(device, [draw(n, seed=n) for n in (3, 20_000)])
    before, versions = contents(params), [p.grad._version for p in params]
    pointers = [p.grad.data_ptr() for p in params]
    safeops.clip_grad_norm_(params, 1e6, nonfinite=policy)
    assert [bits(x) for x in contents(params)] == [bits(x) for x in before]
    assert [p.grad.data_ptr() for p in params] == pointers
    if policy in ("skip", "raise") or not params[0].grad.is_cuda:
        assert [p.grad._version for p in params] == versions


@pytest.mark.parametrize("policy", ["skip", "drop", "keep", "raise"])
def test_autograd_hears_of_a_write(device, host, policy):
    params = on(device, [draw(30)])
    before = params[0].grad._version
    safeops.clip_grad_norm_(params, 0.1, nonfinite=policy)
    assert params[0].grad._version > before


BAD = [
    [torch.tensor([1.0, math.nan, 2.0]), torch.ones(4)],
    [torch.ones(20_000), torch.tensor([3.0, -math.inf]).double()],
    [torch.full((9_000,), math.inf), torch.zeros(0)],
]


@pytest.mark.parametrize("rows", BAD)
def test_skip(device, rows):
    params = on(device, rows)
    with pytest.warns(safeops.NonFiniteGradientWarning, match=r"parameters\[\d\] \(\d+ "):
        norm = safeops.clip_grad_norm_(params, 0.5)
    assert all(p.grad is None for p in params)
    assert_norm(norm.cpu(), exact_norm(rows), 0)


@pytest.mark.parametrize("rows", BAD)
def test_keep_and_raise(device, host, rows):
    params = on(device, rows)
    before = contents(params)
    norm = safeops.clip_grad_norm_(params, 0.5, nonfinite="keep")
    assert_norm(norm.cpu(), exact_norm(rows), 0)
    with pytest.raises(safeops.NonFiniteGradientError, match="first at") as caught:
        safeops.clip_grad_norm_(params, 0.5, nonfinite="raise")
    assert len(caught.value.report) == 2
    assert [bits(x) for x in contents(params)] == [bits(x) for x in before]


@pytest.mark.parametrize("max_norm", [0.5, math.inf])
@pytest.mark.parametrize("rows", BAD)
def test_drop(device, host, rows, max_norm):
    good = [row.nan_to_num(0.0, 0.0, 0.0) for row in rows]
    params, exact = on(device, rows), exact_norm(good)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        norm = safeops.clip_grad_norm_(params, max_norm, nonfinite="drop")
    assert len(said) == (host == "looks" and device.type == "cpu")
    assert_norm(norm.cpu(), exact, 1)
    factor = min(mpmath.mpf(1), mpmath.mpf(max_norm) / exact) if exact else mpmath.mpf(1)
    for row, after in zip(good, contents(params), strict=True):
        assert_close(after, scaled(row, factor), ulps(row.dtype))


@each_dtype
def test_bounds(device, dtype):
    rows = [shifted(draw(n, dtype=dtype, seed=n), n % 3) for n in edges(dtype)[:16]]
    params = on(device, rows)
    safeops.clip_grad_value_(params, 0.5)
    for row, after in zip(rows, contents(params), strict=True):
        assert torch.equal(after, row.clamp(-0.5, 0.5))


def test_finite_clip(device):
    x = placed(torch.tensor([math.nan, math.inf, -math.inf, 0.25]), device)
    safeops.finite_clip_([x], -1.0, 2.0, nan=0.5)
    assert x.tolist() == [0.5, 2.0, -1.0, 0.25]


# --- streams and devices -------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_nothing_waits(gpu, policy):
    params = on(gpu, [draw(n, seed=n) for n in (3, 20_000)])
    safeops.clip_grad_norm_(params, 1.0, nonfinite=policy)
    torch.cuda.set_sync_debug_mode("error")
    try:
        norm = safeops.clip_grad_norm_(params, 0.5, nonfinite=policy)
        with pytest.raises(RuntimeError, match="synchroniz"):
            safeops.clip_grad_norm_(params, 0.25, nonfinite="skip")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert abs(norm.item() - 1) < 1e-6


@pytest.mark.cuda
def test_in_a_graph(gpu):
    params, given = on(gpu, [draw(9), draw(40_000)]), [draw(9, seed=5), draw(40_000, seed=6)]
    safeops.clip_grad_norm_(params, 1.0, nonfinite="keep")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = safeops.clip_grad_norm_(params, 1.0, nonfinite="keep")
    for param, row in zip(params, given, strict=True):
        param.grad.copy_(row)
    graph.replay()
    assert_norm(norm.cpu(), exact_norm(given), 1)
    for row, after in zip(given, contents(params), strict=True):
        assert_close(after, scaled(row, 1 / exact_norm(given)))


@pytest.mark.cuda
def test_other_streams(gpu):
    stream = torch.cuda.Stream()
    for _ in range(20):
        rows = [draw(200_000, seed=k) for k in range(4)]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            assert_clipped(rows, gpu, 0.5)


@pytest.mark.cuda
def test_several_devices(gpu):
    rows = [draw(9), draw(7, seed=1), draw(300, seed=2)]
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    places = (gpu, torch.device("cpu"), last)
    params = [on(to, [row])[0] for row, to in zip(rows, places, strict=True)]
    assert_norm(safeops.clip_grad_norm_(params, 0.5).cpu(), exact_norm(rows), 1)
    for row, after in zip(rows, contents(params), strict=True):
        assert_close(after, scaled(row, 0.5 / exact_norm(rows)))
