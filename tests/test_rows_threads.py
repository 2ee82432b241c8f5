"""Threads, calls beside each other and the state of the floating-point unit do not change the
numbers of the row ops."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import LOGSUMEXP, ROW_OPS
from tests.row_samples import KINDS, along, of_kind, random_mask, scores, upstream_like
from tests.samples import label
from tests.test_threads import threads  # noqa: F401 (a fixture)

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)

# shape and dim: short rows, few long ones that are split inside, off the last axis both ways
WORK = {
    "short rows": ((9_001, 33), -1),
    "rows": ((151, 1_027), -1),
    "few long rows": ((3, 150_001), -1),
    "one row": ((400_003,), 0),
    "one wide column block": ((50, 7_001), 0),
    "few long columns": ((150_001, 3), 0),
    "one column": ((400_003, 1), 0),
    "columns": ((1_027, 151), 0),
    "middle": ((7, 129, 333), 1),
    "middle of many": ((2_001, 9, 17), 1),
}


def results(route, op, shape, dim, dtype, masked):
    x, mask = scores(*shape, dtype=dtype), random_mask(*shape) if masked else None
    value, (gradient,) = route.both(op, [x], upstream_like(op, x, dim), dim=dim, mask=mask)
    return value, gradient


@each_op
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_number_of_threads(kernel, threads, op, work, masked):  # noqa: F811
    for dtype in DTYPES if work in ("rows", "columns") else [torch.float32]:
        seen = []
        for number in (1, 2, 5):
            threads(number)
            seen.append(results(kernel, op, *WORK[work], dtype, masked))
        for ours in seen[1:]:
            assert all(map(torch.equal, ours, seen[0]))


@pytest.mark.parametrize("shape", [(701, 3, 433), (2, 200_001, 2)], ids=str)
@pytest.mark.parametrize("dims", [(0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_number_of_threads_over_several_dims(kernel, threads, shape, dims):  # noqa: F811
    seen = []
    for number in (1, 2, 5):
        threads(number)
        value, (gradient,) = kernel.both(LOGSUMEXP, [scores(*shape)], dim=dims)
        seen.append((value, gradient))
    for ours in seen[1:]:
        assert all(map(torch.equal, ours, seen[0]))


@each_op
@pytest.mark.parametrize("dim", [0, -1])
def test_calls_from_python_threads(route, op, dim):
    """Each with its own buffers."""
    inputs = [scores(40, 700, seed=seed) for seed in range(4)]
    mask = random_mask(40, 700)

    def call(x):
        leaf = x.clone().requires_grad_()
        value = op.function(leaf, dim, mask=mask)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    expected = [call(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for i, ours in enumerate(pool.map(call, inputs * 10)):
            assert all(map(torch.equal, ours, expected[i % 4]))


@each_op
def test_the_same_call_gives_the_same_bits(kernel, op):
    """Whatever the buffers held before."""
    x, dims = scores(64, 129, 20), (0, 1, 2)
    first = [op.function(x, dim) for dim in dims]
    for other in ROW_OPS:
        other.function(torch.full((3, 20_000), torch.nan), -1)
        other.function(torch.full((20_000, 3), torch.inf, dtype=torch.float64), 0)
        assert all(map(torch.equal, [op.function(x, dim) for dim in dims], first))


def flushed():
    """Names of the calls that are not finite where the unit takes subnormals for zero."""
    assert torch.set_flush_denormal(True)
    return [
        f"{op.name} {label(dtype)} {kind} {axis}"
        for op in ROW_OPS
        for dtype in DTYPES
        for kind in KINDS
        for axis in ("last", "first")
        if "inf" not in kind and not stays_finite(op, *along(axis, of_kind(kind, 4, 99, dtype)))
    ]


def stays_finite(op, x, dim):
    x = x.requires_grad_()
    value = op.function(x, dim)
    upstream = torch.linspace(-1, 2, value.numel()).view_as(value).to(value)
    (gradient,) = torch.autograd.grad(value, x, upstream)
    return bool(value.isfinite().all() and gradient.isfinite().all())


@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_flushed_subnormals(request, kernels):
    """In a process of its own: the setting stays with the thread."""
    if kernels == "auto":
        request.getfixturevalue("kernel")
    code = "import tests.test_rows_threads as t; print(t.flushed())"
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "SAFEOPS_KERNELS": kernels}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stdout + run.stderr[-2000:]
