"""vector_norm, norm, linalg_norm: of zero vectors to any order, and of huge ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._route import is_empty, readable
from ._scaling import (
    least_divisor,
    ours,
    power_of_two,
    power_scale,
    regular,
    row_scale,
    squeezed,
    unscaled,
    widened,
)
from .mean import axes

_LINEAR = (0.0, 1.0, math.inf, -math.inf)  # torch's own derivatives are right at 0


def guarded_norm(
    x: Tensor, p: float, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype
) -> Tensor:
    """The norm as differentiable operations, in dtype; x in its compute type."""
    if is_empty(x):
        return torch.linalg.vector_norm(x, p, dims, keepdim).to(dtype)
    value, scale = scaled_norm(x, p, dims)
    return squeezed(unscaled(value, scale, dtype), dims, keepdim)


def scaled_norm(x: Tensor, p: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The norm of x / scale, and scale, both with the dimensions kept."""
    formula = _linear if p in _LINEAR else _euclidean if p == 2 else _any_order
    return formula(x, p, dims)


def _linear(x: Tensor, p: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    scale = row_scale(x, dims) if p == 1 else torch.ones_like(x.detach().sum(dims, keepdim=True))
    return torch.linalg.vector_norm(x / scale, p, dims, keepdim=True), scale


def _euclidean(x: Tensor, p: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    scale = row_scale(x, dims)
    part = x / scale
    square = (part * part).sum(dims, keepdim=True)
    zero = square.detach() == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt()), scale


def _any_order(x: Tensor, p: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Of a negative order one zero makes the norm 0, and the smallest number counts most."""
    size, zero = x.abs(), x.detach() == 0
    scale = power_scale(size, dims, p) if p > 0 else _smallest(size.detach(), dims)
    power = (torch.where(zero, 1.0, size) / scale).pow(p)
    power = torch.where(zero, 0.0 if p > 0 else math.inf, power)
    total = power.sum(dims, keepdim=True)
    none = zero.all(dims, keepdim=True) if p > 0 else zero.any(dims, keepdim=True)
    none = none | (total.detach() == 0)
    return torch.where(none, 0.0, torch.where(none, 1.0, total).pow(1 / p)), scale


def _smallest(size: Tensor, dims: tuple[int, ...]) -> Tensor:
    least = size.amin(dims, keepdim=True)
    return power_of_two(torch.where((least > 0) & (least < math.inf), least, 1.0))


def _torchs_own(value: Tensor, x: Tensor, p: float) -> bool:
    """A look shows that value and derivatives are right."""
    if p in _LINEAR:
        return regular(value)
    if not regular(value, above=least_divisor(x.dtype)):
        return False
    if p >= 2:
        return True
    near = p > 0 or _near_one(value.detach(), 32 / (1 - p))
    return near and bool((x.detach() != 0).all())


def _near_one(value: Tensor, powers: float) -> bool:
    """So that torch's derivative of a negative order, which multiplies powers, is in range."""
    return bool(((value > 2.0**-powers) & (value < 2.0**powers)).all())


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    r"""(sum |x|^p)^(1/p) along dim, p = ord.

    .. math:: f(x) = \left(\sum_i |x_i|^p\right)^{1/p}, \qquad
              \frac{\partial f}{\partial x_i} = \text{sign}(x_i) (|x_i| / f)^{p-1}

    torch's gradient at the zero vector is 0, but its second derivative is NaN there; where the
    powers overflow its value is inf and its gradient 0 or NaN; in float16 its gradient of a short
    vector is inf. Here the value is right and saturates, the gradient is the true one, 0 at the
    zero vector, and the second derivative is finite. Of a negative order a vector with a zero has
    the norm 0, with gradient 0.

    Args:
        x: a tensor of any shape.
        ord: the order, any number.
        dim: the dimension to reduce, or a tuple of them; by default all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype: convert x to this first.
        out: as in torch, whose own op is then called.

    Returns:
        As torch.linalg.vector_norm, with its bits wherever that is regular.

    Raises:
        What torch.linalg.vector_norm does.

    >>> vector_norm(torch.tensor([3e30, 4e30]))
    tensor(5.0000e+30)

    Source: torch.linalg.vector_norm, on rows divided by a power of two.
    """
    if out is not None or not ours(x) or not (dtype is None or dtype.is_floating_point):
        return torch.linalg.vector_norm(x, ord, dim, keepdim, dtype=dtype, out=out)
    if readable(x):
        value = torch.linalg.vector_norm(x, ord, dim, keepdim, dtype=dtype)
        if _torchs_own(value, x, ord):
            return value
    x = x if dtype is None else x.to(dtype)
    return guarded_norm(widened(x), float(ord), axes(x, dim), keepdim, x.dtype)


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """vector_norm by the name and the arguments of torch.norm.

    Of the matrix norms only Frobenius' is a vector norm; the others are torch's own.

    >>> norm(torch.tensor([[3e30, 0.0], [0.0, 4e30]]))
    tensor(5.0000e+30)

    Source: torch.norm.
    """
    order: Any = 2.0 if p is None else p
    if order == "fro" and (dim is None or isinstance(dim, int) or len(dim) <= 2):
        order = 2.0
    if isinstance(order, str) or out is not None or not ours(input):
        return torch.norm(input, p, dim, keepdim, out, dtype)
    return vector_norm(input, order, dim, keepdim, dtype=dtype)


def linalg_norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """vector_norm by the name and the arguments of torch.linalg.norm.

    Of the matrix norms only Frobenius' is a vector norm; the others are torch's own.

    >>> linalg_norm(torch.tensor([3e30, 4e30]), 2)
    tensor(5.0000e+30)

    Source: torch.linalg.norm.
    """
    order = _vector_order(A, ord, dim)
    if order is None or out is not None or not ours(A):
        return torch.linalg.norm(A, ord, dim, keepdim, out=out, dtype=dtype)
    return vector_norm(A, order, dim, keepdim, dtype=dtype)


def _vector_order(x: Tensor, order: float | str | None, dim: Any) -> float | None:
    """The order of the vector norm that this is, if it is one."""
    if order is None:
        return 2.0
    one = x.dim() == 1 if dim is None else isinstance(dim, int) or len(dim) == 1
    if order == "fro":
        two = x.dim() == 2 if dim is None else not isinstance(dim, int) and len(dim) == 2
        return 2.0 if two else None
    return order if one and not isinstance(order, str) else None
