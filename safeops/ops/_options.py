"""What users may pass: tensors that an op takes, and options turned into constants."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

COMPUTE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
Constants = tuple[float, ...]


def check(op: str, tensor: Any) -> None:
    """A clear TypeError for everything the op cannot take."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{op}: expected a torch.Tensor, got {type(tensor).__name__}; "
            "wrap it in torch.as_tensor(...)"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout}"
        kind = "nested" if tensor.is_nested else kind
        raise TypeError(
            f"{op}: expected a dense strided tensor, got a {kind} one; "
            "convert it first (to_dense, dequantize or to_padded_tensor)"
        )
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in COMPUTE):
        raise TypeError(
            f"{op}: expected float64, float32, float16, bfloat16 or an integer dtype, "
            f"got {tensor.dtype}; convert it first, for example with .to(torch.float32)"
        )


def as_floating(op: str, tensor: Any) -> Tensor:
    """The checked tensor; integers and bools become the default dtype, as in torch."""
    check(op, tensor)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def within(value: float, dtype: torch.dtype) -> float:
    """A number that an op puts into its result: at most finfo(dtype).max in size."""
    limit = torch.finfo(dtype).max
    return max(-limit, min(value, limit))


def number(op: str, name: str, value: Any) -> float:
    """A finite Python number as a float (-0.0 counts as 0.0)."""
    value = _real(op, name, value)
    if not -math.inf < value < math.inf:
        raise ValueError(f"{op}: {name} must be finite, so that the result is; got {value!r}")
    return value + 0.0


def _real(op: str, name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{op}: {name} must be a Python number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def rounded(value: float, dtype: torch.dtype) -> float:
    """value rounded to the nearest number of dtype, ties to even, in plain arithmetic."""
    info = torch.finfo(dtype)
    digits, lowest = 2 - math.frexp(info.eps)[1], math.frexp(info.smallest_normal)[1]
    unit = max(math.frexp(value)[1], lowest) - digits
    return value if dtype is torch.float64 else math.ldexp(round(math.ldexp(value, -unit)), unit)


def positive(op: str, name: str, value: Any, dtype: torch.dtype) -> float:
    """A bound: a number above 0 that is still above 0 and finite in the compute type."""
    compute, bound = COMPUTE[dtype], _real(op, name, value)
    if 0 < bound < math.inf:
        bound = rounded(bound, compute)
    if not 0 < bound <= torch.finfo(compute).max:
        raise ValueError(
            f"{op}: {name} must be positive and finite in {compute} "
            f"(the compute type of {dtype}), got {value!r}"
        )
    return bound
