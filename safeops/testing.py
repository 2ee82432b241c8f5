"""What numerical tests need: distances in units in the last place, sweeps of bit patterns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_PATTERN = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_EXPONENT = 0x7FF << 52


def _pattern(dtype: torch.dtype) -> torch.dtype:
    if dtype not in _PATTERN:
        raise TypeError(f"expected float64, float32, float16 or bfloat16, got {dtype}")
    return _PATTERN[dtype]


def ulp_distance(actual: Tensor, expected: Tensor) -> Tensor:
    r"""How far ``actual`` is from ``expected``, in units in the last place of actual's dtype.

    .. math:: d = |actual - expected| / \mathrm{ulp}(expected), \qquad
              \mathrm{ulp}(e) = 2^{\max(\lfloor\log_2|e|\rfloor, e_{min}) - p + 1}

    ``expected`` may be float64 whatever actual is: then it is taken as exact and the distance has
    fractions (a correctly rounded result is at most 0.5 off). With equal dtypes the distance is
    that of the bit patterns: how many numbers lie between the two, plus one.

    NaN and the infinities match only themselves (0, else inf); +0 and -0 are the same point.

    Args:
        actual: a float64, float32, float16 or bfloat16 tensor.
        expected: a tensor of the same dtype, or float64; the shapes broadcast.

    Returns:
        A float64 tensor of the broadcast shape.

    Raises:
        TypeError: another dtype.

    >>> third = torch.tensor(1.0, dtype=torch.float64) / 3
    >>> ulp_distance(third.float(), third).item() < 0.5
    True
    >>> ulp_distance(torch.tensor(1.0), torch.tensor(1.0 + 2**-22)).item()
    2.0
    """
    _pattern(actual.dtype)
    if actual.dtype is expected.dtype:
        distance = _patterns_between(actual, expected)
    elif expected.dtype is torch.float64:
        distance = (actual.double() - expected).abs() / ulp(expected, actual.dtype)
    else:
        raise TypeError(f"expected {actual.dtype} or float64 to compare with, got {expected.dtype}")
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    finite = actual.isfinite() & expected.isfinite()
    return torch.where(same, 0.0, torch.where(finite, distance, math.inf))


def _patterns_between(a: Tensor, b: Tensor) -> Tensor:
    i, j = _ordered(a), _ordered(b)
    apart = (i < 0) != (j < 0)
    return torch.where(apart, i.double() - j.double(), (i - j).double()).abs()


def _ordered(x: Tensor) -> Tensor:
    """Integers in the order of the numbers, consecutive for neighbours, 0 for both zeros."""
    dtype = _pattern(x.dtype)
    bits = x.contiguous().view(dtype).long()
    return torch.where(bits < 0, torch.iinfo(dtype).min - bits, bits)


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of dtype at the exact values x, in float64.

    >>> ulp(torch.tensor([1.0, 0.0], dtype=torch.float64), torch.float16).tolist()
    [0.0009765625, 5.960464477539063e-08]
    """
    info = torch.finfo(dtype)
    size = x.double().clamp(-info.max, info.max).abs().clamp(min=info.smallest_normal)
    return (size.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64) * info.eps


def all_values(dtype: torch.dtype) -> Tensor:
    """All 65,536 bit patterns of a half type, NaNs included.

    >>> all_values(torch.float16).isfinite().sum().item()
    63488
    """
    if dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"expected float16 or bfloat16, got {dtype}; use bit_sweep for wider types")
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def special_values(dtype: torch.dtype) -> Tensor:
    """Where arithmetic changes its rules: zeros, subnormals, ones, the range's ends, inf, NaN.

    >>> special_values(torch.float16)[:3].tolist()
    [0.0, 5.960464477539063e-08, 6.097555160522461e-05]
    """
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    small = [0.0, math.ldexp(tiny, 1) * (info.eps / 2), tiny * (1 - info.eps), tiny]
    near = [0.5, 1 - info.eps / 2, 1.0, 1 + info.eps, 2.0, math.e]
    positive = torch.tensor([*small, *near, info.max, math.inf], dtype=torch.float64)
    nan = torch.tensor([math.nan], dtype=torch.float64)
    return torch.cat([positive, -positive, nan]).to(dtype)


def bit_sweep(dtype: torch.dtype, n: int, seed: int = 0) -> Tensor:
    """n finite numbers spread evenly over the bit patterns, then special_values(dtype).

    Even over bit patterns is even over exponents: every binade and the subnormals get their
    share, half of it negative, one random pattern from each of n/2 equal slices.

    Args:
        dtype: float64, float32, float16 or bfloat16.
        n: how many; rounded up to an even number, and never more than the dtype has.
        seed: another seed, other patterns.

    >>> x = bit_sweep(torch.float32, 1000)
    >>> x.numel() == 1000 + special_values(torch.float32).numel()
    True
    >>> ((x > 0) & (x < torch.finfo(torch.float32).smallest_normal)).any().item()
    True
    """
    pattern = _pattern(dtype)
    end = int(torch.tensor(math.inf, dtype=dtype).view(pattern).item())
    slices = min((n + 1) // 2, end)
    width = end // slices
    generator = torch.Generator().manual_seed(seed)
    offset = torch.randint(width, (slices,), generator=generator)
    positive = (torch.arange(slices) * width + offset).to(pattern).view(dtype)
    return torch.cat([positive, -positive, special_values(dtype)])
