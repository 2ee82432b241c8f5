"""Threads, and the state of the floating-point unit, do not change the numbers."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import safeops
from tests import oracle
from tests.cases import DTYPES, OPS
from tests.samples import label
from tests.test_shapes import values

each_op = pytest.mark.parametrize("op", OPS, ids=label)
SIZES = [(300_001,), (701, 433), (3, 5, 7, 1999)]


@pytest.fixture
def threads():
    """Sets the number of threads of torch; puts the old one back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def operands(op, shape, dtype=torch.float32):
    return [values(*shape, dtype=dtype, seed=seed) for seed in range(op.arity)]


@each_op
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_number_of_threads(route, threads, op, dtype, shape):
    inputs = operands(op, shape, dtype)
    seen = []
    for number in (1, 2, 3):
        threads(number)
        seen.append(route.both(op, inputs))
    for value, gradients in seen[1:]:
        for ours, first in zip((value, *gradients), (seen[0][0], *seen[0][1]), strict=True):
            assert torch.equal(ours.nan_to_num(7.0), first.nan_to_num(7.0))


def test_threads_and_broadcast(route, threads):
    x, y = values(701, 433), values(433, seed=1)
    threads(1)
    one = route.both(OPS[2], [x, y])
    threads(2)
    two = route.both(OPS[2], [x, y])
    torch.testing.assert_close(one, two, equal_nan=True)


@each_op
def test_calls_from_python_threads(route, op):
    inputs = operands(op, (10_000,))
    value, gradients = route.both(op, inputs)

    def call(_):
        leaves = [t.clone().requires_grad_() for t in inputs]
        result = op.function(*leaves)
        return result.detach(), *torch.autograd.grad(result, leaves, torch.ones_like(result))

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(call, range(40)):
            torch.testing.assert_close(results, (value, *gradients), rtol=0, atol=0, equal_nan=True)


def flushed():
    """Names of the calls that are not finite where the unit takes subnormals for zero."""
    assert torch.set_flush_denormal(True)
    return [
        f"{op.name} {label(dtype)} {options}"
        for op in OPS
        for dtype in DTYPES
        for options in op.options
        if not stays_finite(op, dtype, options)
    ]


def stays_finite(op, dtype, options):
    inputs = operands(op, (20_000,), dtype)
    finite = oracle.finite(*inputs)
    leaves = [t[finite].requires_grad_() for t in inputs]
    value = op.function(*leaves, **options)
    results = [value, *torch.autograd.grad(value.sum(), leaves)]
    return all(t.isfinite().all() for t in results)


@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_flushed_subnormals(request, kernels):
    """In a process of its own: the setting stays with the thread."""
    if kernels == "auto":
        request.getfixturevalue("kernel")
    code = "import tests.test_threads as t; print(t.flushed())"
    environment = {**__import__("os").environ, "SAFEOPS_KERNELS": kernels}
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stdout + run.stderr[-2000:]


def test_kernels_can_be_switched_off():
    code = "import safeops, torch; print(safeops.why_not_kernel(torch.ones(1)))"
    environment = {**__import__("os").environ, "SAFEOPS_KERNELS": "off"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "SAFEOPS_KERNELS=off"
    assert safeops.__version__
