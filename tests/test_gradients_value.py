"""clip_grad_value_ and finite_clip_: against torch, the policies, every kind of gradient."""

import math
from contextlib import nullcontext

import pytest
import torch

import safeops
from safeops import NonFiniteGradientError, NonFiniteGradientWarning
from safeops.testing import bit_sweep, special_values
from tests.cases import DTYPES
from tests.gradient_samples import (
    EDGES,
    Untouched,
    assert_close,
    assert_norm,
    bits,
    dense,
    draw,
    exact_norm,
    parameters,
    runs_on,
    unique,
)
from tests.samples import label
from tests.test_gradients_kinds import KINDS, ulps
from tests.test_levels import digest

REAL = [kind for kind in KINDS if not any(g is not None and g.is_complex() for g in KINDS[kind]())]
BAD = (math.nan, math.inf, -math.inf)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
each_kind = pytest.mark.parametrize("kind", KINDS)
each_bad = pytest.mark.parametrize("bad", BAD, ids=str)


def sweep(dtype, n=2_000):
    x = bit_sweep(dtype, n)
    return x[x.isfinite()]


@each_dtype
@pytest.mark.parametrize("value", [0, 1e-3, 0.3, 1, 60_000.0, 1e30, math.inf])
def test_value_is_torchs(route, dtype, value):
    """Bit by bit, on every magnitude that the dtype has."""
    rows = [sweep(dtype), *(draw(n, dtype=dtype, seed=n) * 3 for n in EDGES)]
    expected = [row.clamp(-bound(value, dtype), bound(value, dtype)) for row in rows]
    params = parameters(*rows)
    with runs_on(route):
        assert safeops.clip_grad_value_(params, value) is None
    for param, row in zip(params, expected, strict=True):
        assert torch.equal(param.grad, row)


def bound(value, dtype):
    """Rounded to the dtype."""
    return torch.tensor(min(value, torch.finfo(dtype).max), dtype=torch.float64).to(dtype).item()


@pytest.mark.parametrize("value", [0.5, 1e-3])
def test_drop_in(route, value):
    ours, theirs = (parameters(draw(40), draw(3, 4), draw(9).double()) for _ in range(2))
    safeops.clip_grad_value_(ours, value)
    torch.nn.utils.clip_grad_value_(theirs, value)
    assert [bits(p.grad) for p in ours] == [bits(p.grad) for p in theirs]


@pytest.mark.parametrize("kind", REAL)
def test_value_of_every_kind(route, kind):
    params = parameters(*KINDS[kind]())
    before = [p.grad if p.grad is None else dense(p.grad) for p in params]
    for value in (1e6, 0.5, 0.125):  # exact in every dtype
        safeops.clip_grad_value_(params, value)
        for param, gradient in zip(params, before, strict=True):
            if gradient is not None:
                assert_close(param.grad, gradient.clamp(-value, value), 0)


def test_complex_numbers_have_no_order(route):
    params = parameters(draw(5) * 10, draw(3, dtype=torch.complex64) * 10)
    with Untouched(params), pytest.raises(TypeError, match=r"complex64.*parameters\[1\]"):
        safeops.clip_grad_value_(params, 1.0)


def test_a_version_for_what_is_written(route):
    params = parameters(draw(5) * 10, draw(30) * 10)
    safeops.clip_grad_value_(params, 1.0)
    assert all(p.grad._version > 0 for p in params)


def test_gaps_are_left_alone(route):
    base = draw(6, 10) * 5
    before = base.clone()
    safeops.clip_grad_value_(parameters(base[1:5, 1:9:3], base[0:1, 2:4]), 1.0)
    written = torch.zeros(6, 10, dtype=torch.bool)
    written[1:5, 1:9:3] = written[0:1, 2:4] = True
    assert torch.equal(base, torch.where(written, before.clamp(-1, 1), before))


# --- policies ------------------------------------------------------------------------------------


def spoiled_row(bad, dtype=torch.float32):
    return torch.tensor([5.0, bad, 0.25, -7.0], dtype=dtype)


@each_bad
@each_dtype
def test_policies(route, bad, dtype):
    for policy in ("skip", "drop"):
        params = parameters(draw(40, dtype=dtype).clamp(-1, 1), spoiled_row(bad, dtype))
        with pytest.warns(NonFiniteGradientWarning, match=r"parameters\[1\]"), runs_on(route):
            safeops.clip_grad_value_(params, 1.0, nonfinite=policy)
        if policy == "skip":
            assert [p.grad for p in params] == [None, None]
        else:
            assert params[1].grad.tolist() == [1.0, 0.0, 0.25, -1.0]
            assert torch.equal(params[0].grad, draw(40, dtype=dtype).clamp(-1, 1))


@each_bad
@each_dtype
def test_policies_that_change_nothing(route, bad, dtype):
    params = parameters(draw(40, dtype=dtype) * 9, spoiled_row(bad, dtype))
    with Untouched(params):
        safeops.clip_grad_value_(params, 1.0, nonfinite="keep")
        with pytest.raises(NonFiniteGradientError, match=r"parameters\[1\].*1") as error:
            safeops.clip_grad_value_(params, 1.0, nonfinite="raise")
    assert [row.bad for row in error.value.report] == [0, 1]


def test_drop_where_nothing_is_to_be_clipped(route):
    params = parameters(torch.tensor([0.5, math.inf]), torch.tensor([0.25]))
    with pytest.warns(NonFiniteGradientWarning):
        safeops.clip_grad_value_(params, math.inf, nonfinite="drop")
    assert [p.grad.tolist() for p in params] == [[0.5, 0.0], [0.25]]


@each_kind
@each_bad
def test_bad_elements_of_every_kind(route, kind, bad):
    """Dropped in their place, the others are clipped by the norm of the others."""
    gradients = [g if g is None else spoiled(g, bad) for g in KINDS[kind]()]
    expected = parameters(*[g if g is None else cleared(g) for g in gradients])
    exact, params = exact_norm(unique([p.grad for p in expected])), parameters(*gradients)
    finite = all(g is None or dense(g).isfinite().all() for g in gradients)
    with nullcontext() if finite else pytest.warns(NonFiniteGradientWarning):
        norm = safeops.clip_grad_norm_(params, float(exact / 2), nonfinite="drop")
    assert_norm(norm, exact, ulps(params)[0])
    for param, clean in zip(params, expected, strict=True):
        if clean.grad is not None:
            assert_close(param.grad, dense(clean.grad) / 2, 2 * ulps(params)[1])


def spoiled(gradient, bad):
    """A copy of its kind whose first element, where it has one, is bad."""
    if gradient.layout is torch.sparse_coo:
        values = spoiled(gradient._values(), bad)
        parts = gradient._indices(), values, gradient.shape
        return torch.sparse_coo_tensor(*parts, check_invariants=True)
    gradient = gradient.detach()
    if gradient.numel():
        gradient.view(-1) if gradient.is_contiguous() else None
        gradient[(0,) * gradient.dim()] = bad
    return gradient


def cleared(gradient):
    """A dense copy with zeros in place of bad elements."""
    if gradient.layout is torch.sparse_coo:
        gradient = gradient.coalesce().to_dense()
    clean = gradient.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    return torch.where(clean.isfinite(), clean, 0)


# --- finite_clip_ --------------------------------------------------------------------------------

BOUNDS = ((), (-1.0, 0.3), (None, 0.1), (-1e300, None), (-math.inf, math.inf), (2, 2), (1e-50, 9.0))


@each_dtype
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("nan", [None, 0.5, -1e300])
def test_finite_clip(route, dtype, bounds, nan):
    """The bits of safeops.finite_clip, on every magnitude and every special value."""
    rows = [bit_sweep(dtype, 3_001), special_values(dtype), draw(16_385, dtype=dtype), draw(1)]
    rows += [bit_sweep(dtype, 50)[::2], bit_sweep(dtype, 50)[:48].view(6, 8).t(), draw(0)]
    expected = [safeops.finite_clip(row, *bounds, nan=nan) for row in rows]
    with runs_on(route):
        assert safeops.finite_clip_(rows, *bounds, nan=nan) is None
    assert [digest([row]) for row in rows] == [digest([row]) for row in expected]


@each_dtype
def test_finite_clip_against_torch(route, dtype):
    x, limit = bit_sweep(dtype, 3_000), torch.finfo(dtype).max
    expected = x.nan_to_num(2.0, limit, -limit).clamp(-3.0, 70.0)
    version = x._version
    safeops.finite_clip_(x, -3, 70, nan=2)
    assert torch.equal(x, expected)
    assert x._version > version


def test_finite_clip_of_several_dtypes(route):
    """Bounds are rounded to each: 1e30 is beyond float16, and the end of its range is not."""
    rows = [torch.tensor([math.inf, 1e5, 3.0]).to(dtype) for dtype in DTYPES]
    safeops.finite_clip_(tuple(rows), max=1e30)
    expected = [bound(1e30, dtype) for dtype in DTYPES]
    assert [row[0].item() for row in rows] == expected
    assert [row[2].item() for row in rows] == [3.0] * 4


def test_finite_clip_of_leaves():
    """As torch's in-place operations: not while a gradient could be asked for."""
    leaf, plain = torch.full((2,), math.inf, requires_grad=True), torch.full((2,), math.inf)
    with pytest.raises(RuntimeError, match="grad"):
        safeops.finite_clip_([plain, leaf], -1, 1)
    assert plain.tolist() == [math.inf] * 2
    with torch.no_grad():
        safeops.finite_clip_([plain, leaf], -1, 1)
    assert plain.tolist() == leaf.tolist() == [1.0, 1.0]
    safeops.finite_clip_([], -1, 1)


WRONG = {
    "integers": (lambda: torch.arange(3), "int64"),
    "booleans": (lambda: torch.ones(2, dtype=torch.bool), "bool"),
    "complex": (lambda: torch.ones(2, dtype=torch.complex64), "complex64"),
    "list": (lambda: [1.0], "list"),
    "none": (lambda: None, "None"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_finite_clip_of_no_floating_tensor(kind):
    make, came = WRONG[kind]
    x = torch.full((2,), 9.0)
    with pytest.raises(TypeError, match=came):
        safeops.finite_clip_([x, make()], -1, 1)
    assert x.tolist() == [9.0, 9.0]


def test_finite_clip_with_wrong_options():
    x = torch.full((2,), 9.0)
    cases = ((1.0, -1.0, ValueError), (math.nan, 1, ValueError), ("a", 1, TypeError))
    for low, high, error in cases:
        with pytest.raises(error, match="finite_clip"):
            safeops.finite_clip_([x, x.half()], low, high)
    assert x.tolist() == [9.0, 9.0]
