"""clip_grad_norm_ on finite gradients: the norm, the factor, nothing written without need, and the
same bits for every number of threads and every level."""

import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import safeops
from safeops import _extension
from tests.cases import DTYPES, tiny
from tests.gradient_devices import EMULATED
from tests.gradient_samples import (
    EDGES,
    assert_clips,
    assert_close,
    assert_leaves,
    clip_on,
    draw,
    exact_norm,
    mpmath,
    parameters,
    pieces,
    spread,
)
from tests.samples import label
from tests.test_levels import LEVELS, digest, skip_what_the_machine_lacks
from tests.test_threads import threads  # noqa: F401 (a fixture)

CASES = json.loads((Path(__file__).parent / "cases" / "gradients.json").read_text())
NORMS = (2, 1, math.inf, "inf", -math.inf, 0, 0.5, 3, -1, 2.5, -2, 40, 0.05, -40)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
each_norm = pytest.mark.parametrize("p", NORMS)


def bounds(dtype, p=2):
    """ULPs of the norm and of the gradients. A p near 0 multiplies the error of a sum by 1 / p."""
    wide = 4 + 8 / abs(float(p) or 8)
    return (wide, wide) if dtype is torch.float64 else (1.0, 1.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(route, case):
    dtype = getattr(torch, case["dtype"])
    rows = [torch.tensor([float(x) for x in row], dtype=dtype) for row in case["grads"]]
    bad = any(not row.isfinite().all() for row in rows)
    params = parameters(*rows)
    with pytest.warns(safeops.NonFiniteGradientWarning) if bad else nullcontext():
        norm = clip_on(route, nonfinite=case.get("nonfinite", "skip"))(params, case["max_norm"])
    torch.testing.assert_close(norm.item(), case.get("norm", math.inf), rtol=1e-6, atol=0)
    for param, after in zip(params, case["after"], strict=True):
        assert (param.grad is None) == (after is None)
        if after is not None:
            torch.testing.assert_close(param.grad, torch.tensor(after, dtype=dtype))


@each_dtype
@pytest.mark.parametrize("tensors", [1, 2, 100])
@pytest.mark.parametrize("n", [1, 17, 150])
def test_the_ends_of_the_range(route, dtype, n, tensors):
    """Squares and sums overflow or vanish; the largest norms saturate, their gradients do not."""
    for value in (torch.finfo(dtype).max, tiny(dtype), torch.finfo(dtype).smallest_normal):
        rows = [torch.full((n,), value, dtype=dtype) for _ in range(tensors)]
        norm = exact_norm(rows)
        for max_norm in (1.0, float(norm / 3) if norm < 1e308 else 1e308, float(min(norm, 1e308))):
            params = parameters(*[row.clone() for row in rows])
            check = assert_clips if norm > max_norm else assert_leaves
            total = check(clip_on(route), params, max_norm, ulps=bounds(dtype))
            assert 0 < total < math.inf


def test_beyond_the_range_of_float64(route):
    for value, limit in ((1.7e308, 1.0), (1.7e308, 1e-300), (1.7e308, 1.5e308), (1e-308, 1e-308)):
        params = parameters(*[torch.full((1,), value, dtype=torch.float64) for _ in range(4)])
        total = assert_clips(clip_on(route), params, limit, ulps=(1, 1))
        assert total.item() == min(2 * value, torch.finfo(torch.float64).max)
        torch.testing.assert_close(params[3].grad.item(), limit / 2, rtol=1e-15, atol=0)


SPANS = {
    "whole range": {torch.float64: (-1074, 1023.9), torch.float32: (-149, 127.9)},
    "top": {torch.float64: (1000, 1023.9), torch.float32: (110, 127.9)},
    "bottom": {torch.float64: (-1074, -1020), torch.float32: (-149, -126)},
    "ordinary": {torch.float64: (-4, 4), torch.float32: (-4, 4)},
}


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=label)
def test_many_elements(route, dtype, span):
    """A million over the whole range."""
    x = spread(1_000_000 if span == "whole range" else 130_000, *SPANS[span][dtype], dtype)
    rows = pieces(x, *EDGES, 30_000)
    norm = exact_norm([x])
    max_norm = float(norm / 7) if norm < 1e308 else 3.0
    ulps = 8 if route.name == "kernel" else 512  # torch adds up in another way
    ulps = (ulps, ulps) if dtype is torch.float64 else (1.0, 1.0)
    assert_clips(clip_on(route), parameters(*rows), max_norm, ulps=ulps)


def clips_by(route, rows, p, part=3):
    """A clip to a part of the norm, if there is such a float."""
    exact = exact_norm(rows, p)
    limit = float(min(exact / part, mpmath.mpf(1e300)))
    check = assert_clips if exact and limit else assert_leaves
    check(clip_on(route), parameters(*rows), limit or 1.0, p, ulps=bounds(rows[0].dtype, p))


@each_norm
@each_dtype
def test_norm_types(route, dtype, p):
    rows = [draw(n, dtype=dtype, seed=n) for n in (1, 7, 40, 130)]
    clips_by(route, rows, p)
    clips_by(route, [row * 1e-4 for row in rows], p, part=100)


@each_norm
@pytest.mark.parametrize("span", ["top", "bottom"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=label)
def test_norm_types_at_the_ends(route, dtype, span, p):
    clips_by(route, pieces(spread(400, *SPANS[span][dtype], dtype), 1, 30, 200), p)


@each_norm
def test_norm_types_with_zeros(route, p):
    rows = [torch.tensor([0.0, 3.0, -0.0, 4.0]), torch.zeros(3), torch.empty(0), torch.ones(1)]
    clips_by(route, rows, p)
    zeros = parameters(torch.zeros(5), torch.zeros(2))
    assert assert_leaves(clip_on(route), zeros, 0.0, p) == 0
    assert p or clip_on(route)(parameters(*rows), 10.0, p) == 3  # torch's counts the tensors: 2


@pytest.mark.parametrize("p", NORMS[:5] + NORMS[6:])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=label)
def test_where_torch_is_right(route, dtype, p):
    """torch adds 1e-6 to the denominator."""
    rows = [draw(3, n, dtype=dtype, seed=n) + 3 for n in (5, 300)]
    ours, theirs = (parameters(*[row.clone() for row in rows]) for _ in range(2))
    norm = clip_on(route)(ours, 0.5, p)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5, float(p))
    if expected.isfinite():
        pairs = [(norm, expected), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=3e-5, atol=0)


def test_the_factor_is_the_quotient(route):
    """torch's is 1 / (5e-4 + 1e-6), two thousandths less."""
    params = parameters(torch.tensor([3e-4, 4e-4], dtype=torch.float64))
    assert_clips(clip_on(route), params, 1e-4, ulps=(1, 2))


@each_dtype
def test_limits(route, dtype):
    rows = [draw(n, dtype=dtype, seed=n) for n in (5, 70)]
    assert_leaves(clip_on(route), parameters(*rows), math.inf, ulps=bounds(dtype))
    clip_on(route)(parameters(*rows), 0)
    assert all((row == 0).all() for row in rows)


def test_a_norm_at_the_limit_writes_nothing(route):
    """3, 4 and 5 are exact; the next limit below 5 clips."""
    params = parameters(torch.tensor([3.0]), torch.tensor([[4.0]]))
    assert_leaves(clip_on(route), params, 5.0, ulps=(0, 0))
    before = [p.grad._version for p in params]
    assert_clips(clip_on(route), params, math.nextafter(5.0, 0.0))
    assert all(p.grad._version > v for p, v in zip(params, before, strict=True))


def read_only(dtype):
    """Numbers in a page that cannot be written."""
    with tempfile.TemporaryFile() as file:
        file.write(draw(1_000, dtype=dtype).view(torch.uint8).numpy().tobytes())
        file.flush()
        page = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return torch.frombuffer(page, dtype=dtype)


def small_enough():
    """Fails with the process if a gradient is written."""
    warnings.filterwarnings("ignore", "The given buffer is not writable")
    for dtype in (*DTYPES, torch.complex64):
        params = parameters(read_only(dtype), read_only(dtype)[1::2])
        assert safeops.clip_grad_norm_(params, 1e6) > 10
        safeops.clip_grad_norm_(params, math.inf, 3)
        safeops.clip_grad_value_(params, 10.0) if dtype in DTYPES else None
        safeops.check_finite([p.grad for p in params])
    return "not written"


@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_nothing_is_written(kernels):
    assert fresh("t.small_enough()", SAFEOPS_KERNELS=kernels) == "not written"


def fresh(call, **environment):
    """What a call of this module prints in a process of its own."""
    code = f"import tests.test_gradients_norm as t; print({call})"
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, **environment}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    return run.stdout.strip()


def results(dtype, p, n=250_000):
    """Norm and gradients of a list with work for several threads, in one list."""
    rows = pieces(draw(n, dtype=dtype), *EDGES)
    params = parameters(*rows, spread(40_001, -20, 15, dtype))
    norm = safeops.clip_grad_norm_(params, 1.25, p)
    return [norm.reshape(1), *(p.grad for p in params)]


@each_dtype
@pytest.mark.parametrize("p", [2, 1, math.inf, 0])
def test_number_of_threads(kernel, threads, dtype, p):  # noqa: F811
    seen = []
    for number in (1, 2, 4):
        threads(number)
        seen.append(digest(results(dtype, p)))
    assert seen == seen[:1] * 3


def digests():
    return [digest(results(dtype, p)) for dtype in DTYPES for p in (2, 1)]


@pytest.mark.skipif(EMULATED, reason="levels are those of the CPU kernels")
@pytest.mark.parametrize("level", LEVELS)
def test_level_gives_the_same_bits(kernel, level):
    skip_what_the_machine_lacks(level)
    there = fresh("t._extension.module.level(), t.digests()", ATEN_CPU_CAPABILITY=level)
    assert there == f"{level} {digests()}"


@each_dtype
@pytest.mark.parametrize("p", [2, 1, math.inf, 0])
def test_kernel_is_the_formulas(kernel, monkeypatch, dtype, p):
    ours = results(dtype, p, 100_000)
    monkeypatch.setattr(_extension, "reason", "the test wants the torch formulas")
    for one, other in zip(ours, results(dtype, p, 100_000), strict=True):
        assert_close(one, other.double(), {torch.float64: 64, torch.float32: 2}.get(dtype, 1))
