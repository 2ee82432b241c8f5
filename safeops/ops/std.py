"""std, var, std_mean, var_mean: also of one sample, of equal ones, and of huge ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._route import is_empty, readable, sizes
from ._scaling import (
    held,
    least_divisor,
    ours,
    regular,
    row_scale,
    saturated,
    squeezed,
    tangent,
    unscaled,
    widened,
)
from .mean import axes, guarded_mean

Place = tuple[Any, float, bool]  # dim, correction, keepdim


def _place(dim: Any, unbiased: bool | None, keepdim: bool, correction: float | None) -> Place:
    """torch takes unbiased in the place of dim, and in that of correction."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    return dim, correction, keepdim


def _freedom(x: Tensor, dims: tuple[int, ...], correction: float) -> float:
    shape = sizes(x) or (1,)  # a 0-dim tensor has one row of one
    return math.prod([shape[dim] for dim in dims]) - correction


def _nothing(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """0, and NaN for a row that holds one; gradient 0."""
    zero = torch.where(x.detach() == x.detach(), x * 0, x.detach()) if not is_empty(x) else x
    return zero.sum(dims, keepdim) if dims else zero


def _std(x: Tensor, place: Place) -> Tensor:
    dim, correction, keepdim = place
    dims, wide = axes(x, dim), widened(x)
    if _freedom(x, dims, correction) <= 0 or is_empty(x):
        return _nothing(x, dims, keepdim)
    scale = row_scale(wide, dims)
    square = torch.var(wide / scale, dims, correction=correction, keepdim=True)
    flat = square.detach() == 0
    root = torch.where(flat, 0.0, torch.where(flat, 1.0, square).sqrt())
    return squeezed(unscaled(root, scale, x.dtype), dims, keepdim)


def _var(x: Tensor, place: Place) -> Tensor:
    dim, correction, keepdim = place
    dims, wide = axes(x, dim), widened(x)
    freedom = _freedom(x, dims, correction)
    if freedom <= 0 or is_empty(x):
        return _nothing(x, dims, keepdim)
    scale = row_scale(wide, dims)
    huge, part = scale > 1, wide.detach() / scale
    inside = torch.where(huge, 0.0, wide)
    value = torch.var(inside, dims, correction=correction, keepdim=True)
    value = held(value, torch.full_like(value, torch.finfo(x.dtype).max)).to(x.dtype)
    outside = torch.var(part, dims, correction=correction, keepdim=True) * scale * scale
    slope = (part - part.mean(dims, keepdim=True)) * (2 / freedom) * scale
    zero = tangent(wide, saturated(slope, x.dtype), huge).sum(dims, keepdim=True)
    value = torch.where(huge, saturated(outside, x.dtype) + zero, value).to(x.dtype)
    return squeezed(value, dims, keepdim)


def _call(own: Callable, guarded: Callable, input: Any, place: Place, out: Any) -> Any:
    """torch's own op where its value shows that it is right, else the guarded one."""
    dim, correction, keepdim = place
    call = {"correction": correction, "keepdim": keepdim}
    if out is not None:
        return own(input, dim, **call, out=out)
    if not ours(input):
        return own(input, dim, **call)
    if _few(input, dim, correction) or not readable(input):
        return guarded(input, place)
    value = own(input, dim, **call)
    first, *rest = value if isinstance(value, tuple) else (value,)
    if regular(first, above=least_divisor(input.dtype)) and all(map(regular, rest)):
        return value
    return guarded(input, place)


def _few(x: Tensor, dim: Any, correction: float) -> bool:
    """No degree of freedom, of which torch warns. A dim that is none is an error of its own."""
    try:
        return _freedom(x, axes(x, dim), correction) <= 0
    except (IndexError, TypeError):
        return False


def _both(one: Callable[[Tensor, Place], Tensor]) -> Callable[[Tensor, Place], Any]:
    return lambda x, place: (one(x, place), guarded_mean(x, place[0], place[2]))


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    r"""sqrt(var(x)) along dim, 0 where there are no degrees of freedom.

    .. math:: f(x) = \sqrt{\tfrac{1}{n - c} \sum_i (x_i - \bar x)^2}, \qquad
              \frac{\partial f}{\partial x_i} = \frac{x_i - \bar x}{(n - c) f(x)}

    torch gives NaN, with a NaN gradient and a warning, for one sample, and inf where the squares
    overflow; its second derivative at equal samples is NaN. Here one sample (or any n <= c) gives
    0 with gradient 0, equal samples give 0 with gradient 0 and a finite second derivative, and
    huge ones the true value, saturated.

    Args:
        input: a tensor of any shape.
        dim: the dimension to reduce, or a tuple of them; by default all. A bool is ``unbiased``.
        unbiased: True for correction 1 (the default), False for 0.
        keepdim: keep the reduced dimensions, with size 1.
        correction: c, the degrees of freedom that are taken off.
        out: as in torch, whose own op is then called.

    Returns:
        As torch.std, with its bits wherever that is regular.

    Raises:
        What torch.std does.

    >>> std(torch.tensor([[1.0], [2.0]]), dim=1)
    tensor([0., 0.])
    >>> std(torch.tensor([1e30, -1e30]))
    tensor(1.4142e+30)

    Source: torch.var on rows divided by a power of two.
    """
    return _call(torch.std, _std, input, _place(dim, unbiased, keepdim, correction), out)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    r"""The variance along dim, 0 where there are no degrees of freedom.

    .. math:: f(x) = \frac{1}{n - c} \sum_i (x_i - \bar x)^2, \qquad
              \frac{\partial f}{\partial x_i} = \frac{2 (x_i - \bar x)}{n - c}

    torch gives NaN, with a NaN gradient and a warning, for one sample, and inf where the squares
    overflow. Here the first is 0 with gradient 0; the second saturates and keeps its gradient.

    Args:
        input, dim, unbiased, keepdim, correction, out: as in std; what is returned and raised too.

    >>> var(torch.tensor([[1.0], [2.0]]), dim=1)
    tensor([0., 0.])

    Source: torch.var.
    """
    return _call(torch.var, _var, input, _place(dim, unbiased, keepdim, correction), out)


def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(std(x), mean(x)) along dim: each as of its own; see std and mean.

    Args:
        input, dim, unbiased, keepdim, correction: as in std; what is returned and raised too.

    >>> std_mean(torch.tensor([2.0]))
    (tensor(0.), tensor(2.))

    Source: torch.std_mean.
    """
    place = _place(dim, unbiased, keepdim, correction)
    return _call(torch.std_mean, _both(_std), input, place, None)


def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(var(x), mean(x)) along dim: each as of its own; see var and mean.

    Args:
        input, dim, unbiased, keepdim, correction: as in var; what is returned and raised too.

    >>> var_mean(torch.tensor([2.0]))
    (tensor(0.), tensor(2.))

    Source: torch.var_mean.
    """
    place = _place(dim, unbiased, keepdim, correction)
    return _call(torch.var_mean, _both(_var), input, place, None)
