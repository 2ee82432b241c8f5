"""mean: also of nothing, and of what cannot be added without an overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._route import is_empty, readable
from ._options import COMPUTE
from ._scaling import ours, regular, squeezed, sum_scale, unscaled


def axes(x: Tensor, dim: Any) -> tuple[int, ...]:
    """The dimensions to reduce, counted from the front; None and () are all."""
    given = dim if isinstance(dim, tuple | list) else () if dim is None else (dim,)
    return tuple(_axis(x, one) for one in given) or tuple(range(x.dim()))


def _axis(x: Tensor, dim: int) -> int:
    count = max(x.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got "
            f"{dim})"
        )
    return dim % count


def guarded_mean(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The mean as differentiable operations."""
    dims = axes(x, dim)
    if is_empty(x):
        return x.sum(dims, keepdim) if dims else x
    scale = sum_scale(x, dims)
    value = unscaled(torch.mean(x / scale, dims, keepdim=True), scale, x.dtype)
    return squeezed(value, dims, keepdim)


def mean(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    r"""sum(x) / n along dim, and 0 where n is 0.

    .. math:: f(x) = \frac{1}{n} \sum_i x_i, \qquad \frac{\partial f}{\partial x_i} = \frac{1}{n}

    torch gives NaN for the mean of nothing, and ±inf where the sum of finite numbers overflows.
    Here the first is 0, connected to the graph with gradient 0 (as what a filter left over in a
    loss), and the second the true mean.

    Args:
        input: a tensor of any shape.
        dim: the dimension to reduce, or a tuple of them; by default all.
        keepdim: keep the reduced dimensions, with size 1.
        dtype: convert input to this first.
        out: as in torch, whose own op is then called.

    Returns:
        As torch.mean, with its bits wherever that is finite.

    Raises:
        What torch.mean does.

    >>> mean(torch.tensor([]))
    tensor(0.)
    >>> mean(torch.tensor([3e38, 3e38]))
    tensor(3.0000e+38)

    Source: torch.mean, on the row divided by a power of two where the sum would overflow.
    """
    if out is not None or not ours(input) or not (dtype is None or dtype in COMPUTE):
        over = () if dim is None and not keepdim else (dim, keepdim)  # jagged ones know no None
        return torch.mean(input, *over, dtype=dtype, **({} if out is None else {"out": out}))
    if readable(input):
        value = torch.mean(input, dim, keepdim, dtype=dtype)
        if regular(value):
            return value
    return guarded_mean(input if dtype is None else input.to(dtype), dim, keepdim)
