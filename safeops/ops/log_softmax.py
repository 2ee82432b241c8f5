"""log_softmax: the logarithm of softmax, and -inf where a row has nothing to distribute over."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._route import log_softmax_backward, readable
from ._row_formulas import (
    both,
    finite,
    fused,
    held,
    limited,
    only,
    scale_of,
    settled,
    size_of,
    top_of,
)
from ._rows import Rows, converted


def _value(dtype: torch.dtype, x: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    x = only(mask, x, -math.inf)
    value = fused(torch.log_softmax, x, dim, part=mask)
    if value is None:
        return _guarded_value(dtype, x, dim, mask)
    return only(mask, limited(value, dtype), -math.inf)


def _guarded_value(dtype: torch.dtype, x: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    top = top_of(x, dim)
    x = settled(x, top)
    value = torch.log_softmax(x, dim)
    value = torch.where(x > -math.inf, value.clamp(min=torch.finfo(dtype).min), value)
    return only(both(top != -math.inf, mask), value, -math.inf)


def _composite(dtype: torch.dtype, x: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    x = only(mask, x, -math.inf)
    top = top_of(x, dim)
    value = torch.log_softmax(_below_top(settled(x, top), top), dim)
    return only(both(top != -math.inf, mask), held(value, dtype), -math.inf)


def _below_top(x: Tensor, top: Tensor) -> Tensor:
    """x - top, where torch itself would go beyond the range: the slope stays 1."""
    fixed, limit = x.detach(), torch.finfo(x.dtype).max
    gap = x - torch.where(top.abs() < math.inf, top, 0.0)
    over = (gap == -math.inf) & (fixed > -math.inf)
    return torch.where(over, (x - fixed) - limit, gap)


def _gradient(dtype: torch.dtype, grad: Tensor, r: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    grad, value = only(mask, grad, 0.0), None
    if readable(r) and finite(only(mask, r, 0.0)):  # no -inf that takes part: no guarded row
        value = fused(log_softmax_backward, grad, r, dim, r.dtype)
    return _guarded_gradient(dtype, grad, r, dim, mask) if value is None else limited(value, dtype)


def _guarded_gradient(
    dtype: torch.dtype, grad: Tensor, r: Tensor, dim: int, mask: Tensor | None
) -> Tensor:
    """g - exp(r) sum(g) over the elements that take part, saturated (G2)."""
    grad = torch.where((r != -math.inf).any(dim, keepdim=True), grad, 0.0)
    size = size_of(grad, dim)
    r, scale = torch.where((size == 0) & (r != r), -math.inf, r), scale_of(size)
    part, limit = grad * scale, torch.finfo(dtype).max
    value = log_softmax_backward(part, r, dim, r.dtype)
    small = (scale < 1) & (grad.abs() < 1)  # of which scaling took bits
    whole = torch.where(small, grad + (value - part) / scale, value / scale)
    whole = torch.where(value.abs() < math.inf, whole.clamp(-limit, limit), whole)
    return only(mask, whole, 0.0)


_log_softmax = Rows("log_softmax", _value, _gradient, _composite)


def log_softmax(
    x: Tensor, dim: int, *, mask: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    r"""x - log(sum(exp(x))) along dim, and -inf in a row that is all -inf or all masked.

    .. math:: r_i = x_i - \log \sum_j m_j \exp(x_j), \qquad
              \frac{\partial r_i}{\partial x_j} = \delta_{ij} - \exp(r_j)

    torch gives NaN for a row of -inf, with a NaN gradient that no mask on the result removes.
    Here the value there is -inf, the logarithm of softmax's 0, and the gradient is 0. k times
    +inf in a row give -log(k) each, and everything else in it -inf.

    Args:
        x: a tensor of any shape.
        dim: the dimension along which exp of the result sums to 1.
        mask: a bool tensor that broadcasts to x's shape, True where an element takes part. What
            is masked is never read: its value is -inf and its gradient 0, even if it is NaN, and
            its upstream gradient takes no part.
        dtype: convert x to this first.

    Returns:
        A contiguous tensor of x's shape and dtype. Half types compute in float32 and round once.
        A finite x gives at least -finfo(dtype).max, where torch overflows; only what is masked and
        what was -inf gives -inf. Before it meets a weight of 0, replace it: 0 * -inf is NaN, and
        ``torch.where(mask, r, 0.0)`` is right in value and gradient. A NaN makes every
        element of its row that takes part NaN; the gradient is still 0 where the whole upstream
        gradient of the row is.

    Raises:
        IndexError: dim out of range.
        TypeError: complex, sparse, nested or quantized tensors; integers without dtype; a dtype
            that is not floating; a mask that is not bool.
        RuntimeError: a mask that does not broadcast to x's shape, or on another device.

    >>> log_softmax(torch.tensor([[0.0, 0.0], [float("-inf"), float("-inf")]]), -1)
    tensor([[-0.6931, -0.6931],
            [   -inf,    -inf]])
    >>> log_softmax(torch.tensor([1.0, 5.0, 1.0]), 0, mask=torch.tensor([True, False, True]))
    tensor([-0.6931,    -inf, -0.6931])

    Source: torch.log_softmax; csrc/cpu/rows.cpp.
    """
    return _log_softmax(x if dtype is None else converted("log_softmax", x, dtype), mask, dim)
