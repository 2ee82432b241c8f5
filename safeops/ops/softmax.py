"""softmax: a distribution over a row, and 0 where the row has nothing to distribute over."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._route import softmax_backward
from ._row_formulas import both, fused, only, scale_of, settled, size_of, top_of
from ._rows import Rows, converted


def _value(dtype: torch.dtype, x: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    value = fused(torch.softmax, only(mask, x, -math.inf), dim)
    return _composite(dtype, x, dim, mask) if value is None else value


def _composite(dtype: torch.dtype, x: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    x = only(mask, x, -math.inf)
    top = top_of(x, dim)
    value = torch.softmax(settled(x, top), dim)
    return only(both(top != -math.inf, mask), value, 0.0)


def _gradient(dtype: torch.dtype, grad: Tensor, y: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    grad = only(mask, grad, 0.0)
    value = fused(softmax_backward, grad, y, dim, y.dtype)
    return _guarded_gradient(grad, y, dim, mask) if value is None else value


def _guarded_gradient(grad: Tensor, y: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """y (g - sum(g y)) over the elements that take part. A row without weight is all 0."""
    grad = torch.where((y != 0).any(dim, keepdim=True), grad, 0.0)
    size = size_of(grad, dim)
    y, scale = torch.where((size == 0) & (y != y), 0.0, y), scale_of(size)
    return only(mask, softmax_backward(grad * scale, y, dim, y.dtype) / scale, 0.0)


_softmax = Rows("softmax", _value, _gradient, _composite)


def softmax(
    x: Tensor, dim: int, *, mask: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    r"""exp(x) / sum(exp(x)) along dim, and 0 in a row that is all -inf or all masked.

    .. math:: y_i = \frac{m_i \exp(x_i)}{\sum_j m_j \exp(x_j)}, \qquad
              \frac{\partial y_i}{\partial x_j} = y_i (\delta_{ij} - y_j)

    torch gives NaN for a row of -inf, and adding -inf to a row that is all masked makes one; its
    gradient is NaN too, and ``torch.nan_to_num`` does not mend that. Here both are 0. One +inf
    takes all of a row, and k of them 1/k each.

    Args:
        x: a tensor of any shape.
        dim: the dimension along which the result sums to 1.
        mask: a bool tensor that broadcasts to x's shape, True where an element takes part. What
            is masked is never read: its value and its gradient are 0, even if it is NaN.
        dtype: convert x to this first.

    Returns:
        A contiguous tensor of x's shape and dtype. Half types compute in float32 and round once.
        A NaN makes every element of its row that takes part NaN; the gradient is still 0 where
        the whole upstream gradient of the row is.

    Raises:
        IndexError: dim out of range.
        TypeError: complex, sparse, nested or quantized tensors; integers without dtype; a dtype
            that is not floating; a mask that is not bool.
        RuntimeError: a mask that does not broadcast to x's shape, or on another device.

    >>> softmax(torch.tensor([[0.0, 0.0], [float("-inf"), float("-inf")]]), -1)
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    >>> softmax(torch.tensor([1.0, float("nan"), 1.0]), 0, mask=torch.tensor([True, False, True]))
    tensor([0.5000, 0.0000, 0.5000])

    Source: torch.softmax, whose subtraction of the largest element keeps exp in range;
    csrc/cpu/rows.cpp.
    """
    return _softmax(x if dtype is None else converted("softmax", x, dtype), mask, dim)
