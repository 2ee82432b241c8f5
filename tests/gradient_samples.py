"""Parameters with given gradients: kinds of lists of them, the exact norm, and what a clip must
leave behind. The oracle is mpmath, or sums that math.fsum rounds once."""

import math
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

import safeops
from safeops import _extension
from safeops.testing import ulp_distance
from tests.oracle import mpmath

# around vectors and chunks of 64 KiB
EDGES = (1, 2, 15, 16, 17, 33, 65, 4_095, 8_193, 16_383, 16_384, 16_385, 32_769)
WIDE = (torch.float64, torch.complex128)


def parameters(*gradients):
    """Parameters of ones that have these gradients; None is a parameter without one."""
    return [parameter(gradient) for gradient in gradients]


def parameter(gradient):
    if gradient is None:
        return torch.nn.Parameter(torch.ones(2))
    leaf = torch.nn.Parameter(torch.ones(gradient.shape, dtype=gradient.dtype))
    leaf.grad = gradient
    return leaf


def gradients_of(params):
    return [p.grad for p in params if p.grad is not None]


def dense(gradient):
    """A contiguous copy in float64 or complex128, without gaps and without a conjugate bit."""
    if gradient.layout is torch.sparse_coo:
        gradient = gradient.coalesce().to_dense()
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    return gradient.detach().to(wide).resolve_conj().clone(memory_format=torch.contiguous_format)


def bits(gradient):
    """What lies in memory, so that NaN equals NaN and -0 is not 0."""
    if gradient.layout is torch.sparse_coo:
        return gradient._indices().tolist(), bits(gradient._values())
    plain = (
        gradient.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


class Untouched:
    """Fails if the block changes a gradient, be it to the same value, or puts another there."""

    def __init__(self, params):
        self.params = list(params)

    def _state(self):
        return [(g is None, g is not None and (g._version, bits(g))) for g in self.gradients]

    def __enter__(self):
        self.gradients = [p.grad for p in self.params]
        self.before = self._state()

    def __exit__(self, kind, error, trace):
        assert all(p.grad is g for p, g in zip(self.params, self.gradients, strict=True))
        assert self._state() == self.before


def _parts(gradients):
    """All elements as one float64 vector; a complex one counts as two."""
    wide = [dense(g).reshape(-1) for g in gradients if g is not None]
    wide = [torch.view_as_real(w).reshape(-1) if w.is_complex() else w for w in wide]
    return torch.cat([torch.empty(0, dtype=torch.float64), *wide])


def _magnitudes(gradients):
    """The magnitudes of all elements, exact."""
    wide = [dense(g).reshape(-1).tolist() for g in gradients if g is not None]
    return [abs(mpmath.mpmathify(value)) for values in wide for value in values]


def exact_norm(gradients, p=2.0):
    """The p-norm of all elements together: NaN if one is, else inf if one is."""
    p, parts = float(p), _parts(gradients)
    if not parts.isfinite().all():
        return mpmath.nan if parts.isnan().any() else mpmath.inf
    if p == 2:
        return mpmath.sqrt(sum_of_squares(parts))
    return norm_of(_magnitudes(gradients), p)


def norm_of(magnitudes, p):
    """The p-norm of finite numbers."""
    if p == 0:
        return mpmath.mpf(sum(value != 0 for value in magnitudes))
    if math.isinf(p):
        return max(magnitudes, default=mpmath.mpf(0)) if p > 0 else min(magnitudes)
    if p < 0 and 0 in magnitudes:
        return mpmath.mpf(0)
    total = mpmath.fsum(value ** mpmath.mpf(p) for value in magnitudes)
    return total ** (1 / mpmath.mpf(p)) if total else total


def sum_of_squares(x):
    """Of float64 numbers, to one rounding: each square is the sum of two floats."""
    exponent = math.frexp(x.abs().max().item())[1] if x.numel() else 0
    x = np.ldexp(x.numpy(), -exponent)
    upper = x * (2.0**27 + 1) - (x * (2.0**27 + 1) - x)
    lower, high = x - upper, x * x
    low = ((upper * upper - high) + 2 * upper * lower) + lower * lower
    return mpmath.ldexp(math.fsum([*high.tolist(), *low.tolist()]), 2 * exponent)


def scaled(gradient, factor):
    """gradient * factor in float64, where factor is an mpf beyond the range of floats too."""
    mantissa, exponent = mpmath.frexp(factor)
    half = int(exponent) // 2
    return dense(gradient) * float(mantissa) * 2.0**half * 2.0 ** (int(exponent) - half)


def result_dtype(gradients):
    wide = any(g is not None and g.dtype in WIDE for g in gradients)
    return torch.float64 if wide else torch.float32


def assert_norm(total, exact, ulps):
    """A 0-dim tensor within ulps of the exact norm, which saturates."""
    assert total.shape == ()
    assert not total.requires_grad
    if mpmath.isfinite(exact):
        exact = min(exact, mpmath.mpf(torch.finfo(total.dtype).max))
    expected = torch.tensor(float(exact), dtype=torch.float64)
    error = ulp_distance(total, expected).item()
    assert error <= ulps, f"{error} ULP: {total.item()!r} for {float(exact)!r}"


def assert_close(gradient, expected, ulps=1.0):
    """Each element within ulps of the float64 tensor expected."""
    assert gradient.shape == expected.shape
    if gradient.layout is torch.sparse_coo:
        gradient = gradient.coalesce().to_dense()
    if expected.is_complex():
        gradient, expected = map(torch.view_as_real, (gradient.resolve_conj(), expected))
    if expected.numel():
        errors = ulp_distance(gradient.contiguous(), expected).reshape(-1)
        worst = errors.argmax()
        came, exact = gradient.reshape(-1)[worst].item(), expected.reshape(-1)[worst].item()
        assert errors[worst] <= ulps, f"{errors[worst].item()} ULP: {came!r} for {exact!r}"


def assert_clips(clip, params, max_norm, p=2.0, ulps=(1.0, 1.0)):
    """clip(params, max_norm, p) must return the norm of the gradients and leave them clipped:
    (ulps of the norm, ulps of the gradients)."""
    before = [p.grad for p in params]
    exact = exact_norm(unique(before), p)
    expected = [g if g is None else scaled(g, mpmath.mpf(max_norm) / exact) for g in before]
    total = clip(params, max_norm, p)
    assert total.dtype == result_dtype(before)
    assert_norm(total, exact, ulps[0])
    for param, gradient in zip(params, expected, strict=True):
        assert (param.grad is None) == (gradient is None)
        gradient is None or assert_close(param.grad, gradient, ulps[1])
    return total


def assert_leaves(clip, params, max_norm, p=2.0, ulps=(1.0, 1.0)):
    """The same for gradients that are small enough: nothing is written."""
    exact = exact_norm(unique([p.grad for p in params]), p)
    assert exact <= max_norm
    with Untouched(params):
        total = clip(params, max_norm, p)
    assert_norm(total, exact, ulps[0])
    return total


@contextmanager
def runs_on(route, expected=True):
    """The block has kernels read something (unless not expected) on that route, and only there."""
    module, made = _extension.module, []
    if module is None:
        yield
        return
    make = module.Tensors
    spy = lambda *args: made.append(make(*args)) or made[-1]  # noqa: E731
    with mock.patch.object(module, "Tensors", spy):
        yield
    assert any(batch.places for batch in made) == (route.name == "kernel" and expected)


def clip_on(route, **options):
    """safeops.clip_grad_norm_ that fails if it took another route. The kernels have four norms."""

    def clip(params, max_norm, p=2.0):
        with runs_on(route, float(p) in (2, 1, math.inf, 0)):
            return safeops.clip_grad_norm_(params, max_norm, p, **options)

    return clip


def unique(gradients):
    return list({id(g): g for g in gradients if g is not None}.values())


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, dtype=torch.float32, seed=0):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator(seed), dtype=wide).to(dtype)


def spread(n, low, high, dtype=torch.float32, seed=0):
    """n numbers of both signs, even over the exponents from 2**low to 2**high."""
    exponents = torch.rand(n, generator=generator(seed), dtype=torch.float64) * (high - low) + low
    signs = torch.randint(0, 2, (n,), generator=generator(seed + 1)) * 2 - 1
    half = (exponents / 2).floor()
    return (2.0**half * 2.0 ** (exponents - half) * signs).to(dtype)


def pieces(x, *sizes):
    """x cut into tensors of their own of these sizes and the rest."""
    rest = x.numel() - sum(sizes)
    return [part.clone() for part in x.split([*sizes, rest])]
