"""What only the ops without a kernel do: torch's own op where it is right, extremes, compile."""

import pytest
import torch

import safeops
from safeops.testing import ulp_distance
from tests import oracle
from tests.cases import DTYPES
from tests.kernelless_cases import BINARY, KERNELLESS, NAMED, POWERS, UNARY
from tests.samples import label, sweep

each_op = pytest.mark.parametrize("op", KERNELLESS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")


@each_op
@each_dtype
def test_composite_gradient_is_torchs(composite, op, dtype):
    """Where torch's is finite and nothing is guarded; half types compute in float32 here."""
    inputs = sweep(op, dtype, 300)
    wide = [t.to(torch.float64 if dtype is torch.float64 else torch.float32) for t in inputs]
    ours = composite.gradients(op, inputs)
    value, pull = torch.func.vjp(op.torch, *wide)
    regular = value.abs() <= torch.finfo(dtype).max
    regular &= oracle.finite(*inputs) & ~op.guard(
        oracle.Options(dtype), *[t.double() for t in inputs]
    )
    for gradient, theirs in zip(ours, pull(torch.ones_like(value)), strict=True):
        scaled = op.public in ("safe_atan2", "safe_hypot")  # better than torch's far from 1
        ordinary = torch.stack([(t.abs() > 1e-9) & (t.abs() < 1e9) for t in wide]).all(0)
        kept = regular & (theirs.abs() <= torch.finfo(dtype).max) & (ordinary | (not scaled))
        assert ulp_distance(gradient[kept], theirs[kept].to(dtype)).max() <= 2 + 2 * scaled


@each_op
def test_torchs_own_op_is_tried_once(op, monkeypatch):
    """Nothing but torch's own op runs on healthy numbers, forward and backward."""
    monkeypatch.setattr(type(safeops.ops.exp._exp.formulas), "forward", None)
    monkeypatch.setattr(type(safeops.ops.exp._exp.formulas), "backward", None)
    inputs = [torch.tensor([op.safe, 1.5 * op.safe]).requires_grad_() for _ in range(op.arity)]
    value = op.function(*inputs)
    assert torch.equal(value, op.torch(*inputs))
    assert all(g.isfinite().all() for g in torch.autograd.grad(value.sum(), inputs))


@pytest.mark.parametrize("size", [1e-30, 1e30, 3e38])
def test_angles_and_lengths_of_every_size(formulas, size):
    for name, slopes in [
        ("safe_atan2", (0.5 / size, -0.5 / size)),
        ("safe_hypot", (0.5**0.5,) * 2),
    ]:
        inputs = [torch.full((2,), size)] * 2
        for gradient, slope in zip(formulas.gradients(NAMED[name], inputs), slopes, strict=True):
            torch.testing.assert_close(gradient, torch.full((2,), slope), rtol=1e-5, atol=1e-44)


def everything(x, y):
    """One graph, so that it compiles once."""
    values = [op.function(x) for op in (*UNARY, *POWERS)]
    return (*values, *(op.function(x, y) for op in BINARY))


def pull(function, leaves):
    return torch.autograd.grad(
        torch.stack(function(*leaves)).sum(0), leaves, torch.ones_like(leaves[0])
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_is_eager(backend):
    torch.compiler.reset()
    x, y = sweep(NAMED["safe_pow"], torch.float32, 200)
    near = (x.abs() < 1e3) & (x.abs() > 1e-3) & (y.abs() < 1e3) & (y.abs() > 1e-3)
    leaves = [t[near].requires_grad_() for t in (x, y)]
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    for ours, theirs in zip(compiled(*leaves), everything(*leaves), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-5)
    pulled = [pull(function, leaves) for function in (compiled, everything)]
    for ours, theirs in zip(*pulled, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("x", [torch.arange(-2, 4), torch.tensor([True, False])], ids=label)
def test_integer_powers_of_integers_are_torchs(x):
    for exponent in (2, torch.tensor(3), True):
        assert torch.equal(safeops.safe_pow(x, exponent), torch.pow(x, exponent))
    assert torch.equal(safeops.safe_pow(2, x), torch.pow(2, x))
    assert safeops.safe_pow(x, 0.5).dtype is torch.pow(x, 0.5).dtype
    with pytest.raises(RuntimeError):
        safeops.safe_pow(x.long(), -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=label)
@pytest.mark.parametrize("number", [2.5, 3], ids=str)
def test_numbers_promote_as_in_torch(dtype, number):
    x = torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
    calls = [
        (lambda f: f(x, number), safeops.safe_pow, torch.pow),
        (lambda f: f(number, x), safeops.safe_pow, torch.pow),
        (lambda f: f(x, number), safeops.safe_xlogy, torch.xlogy),
        (lambda f: f(number, x), safeops.safe_xlogy, torch.xlogy),
        (lambda f: f(number, x), safeops.safe_xlog1py, torch.special.xlog1py),
    ]
    for call, ours, theirs in calls:
        torch.testing.assert_close(call(ours), call(theirs))
