"""logcumsumexp: with a gradient also behind leading -inf."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._route import is_empty, readable
from ._scaling import ours, regular, widened


def _guarded(x: Tensor, dim: int) -> Tensor:
    """Leading -inf are replaced by the smallest number, beside which every other is infinitely
    large, and put back."""
    wide = widened(x)
    none = torch.cummax(wide.detach(), dim).values == -math.inf
    value = torch.logcumsumexp(torch.where(none, torch.finfo(wide.dtype).min, wide), dim)
    return torch.where(none, -math.inf, value).to(x.dtype)


def logcumsumexp(input: Tensor, dim: int, *, out: Tensor | None = None) -> Tensor:
    r"""log(cumsum(exp(x))) along dim.

    .. math:: r_i = \log \sum_{j \le i} \exp(x_j), \qquad
              \frac{\partial r_i}{\partial x_j} = \exp(x_j - r_i) \text{ for } j \le i

    torch's value is right, -inf as long as only -inf came, but its gradient to those elements is
    NaN. Here it is 0.

    Args:
        input: a tensor of any shape.
        dim: the dimension along which to add.
        out: as in torch, whose own op is then called.

    Returns:
        As torch.logcumsumexp, with its bits wherever that is finite.

    Raises:
        What torch.logcumsumexp does.

    >>> x = torch.tensor([float("-inf"), 0.0], requires_grad=True)
    >>> logcumsumexp(x, 0).exp().sum().backward()
    >>> x.grad
    tensor([0., 1.])

    Source: torch.logcumsumexp.
    """
    if out is not None or not ours(input):
        return torch.logcumsumexp(input, dim, out=out)
    if is_empty(input):
        return torch.logcumsumexp(input, dim)
    if readable(input):
        value = torch.logcumsumexp(input, dim)
        if regular(value):
            return value
    return _guarded(input, dim)
