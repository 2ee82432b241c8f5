"""logsumexp: the logarithm of a sum of exponentials, with a gradient where the sum is 0 or inf."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._route import row_obstacle
from ._options import as_floating
from ._row_formulas import both, fused, held, only, settled, top_of
from ._rows import KERNEL, Place, Rows, check_mask_shape, wrapped

Dims = tuple[int, ...]


def _value(dtype: torch.dtype, x: Tensor, dim: Dims, keepdim: bool, mask: Tensor | None) -> Tensor:
    """torch's own value has every limit right."""
    return held(torch.logsumexp(only(mask, x, -math.inf), dim, keepdim), dtype)


def _composite(
    dtype: torch.dtype, x: Tensor, dim: Dims, keepdim: bool, mask: Tensor | None
) -> Tensor:
    """top is taken off before, since torch's gradient exp(x - r) suffers from a rounded r."""
    x = only(mask, x, -math.inf)
    top = top_of(x, dim)
    regular = top.abs() < math.inf
    value = torch.logsumexp(torch.where(regular, x - top, 0.0), dim, keepdim=True)
    value = torch.where(regular, held(value + top, dtype), _limit(x, top, dim))
    return value if keepdim else value.squeeze(dim)


def _limit(x: Tensor, top: Tensor, dim: Dims) -> Tensor:
    """top, which is no number; a +inf one with the derivative 1 / k to each of k infinities."""
    infinite = x.detach() == math.inf
    count = infinite.sum(dim, keepdim=True).clamp(min=1)
    mean = torch.where(infinite, x / count, 0.0).sum(dim, keepdim=True)
    return torch.where(top == math.inf, mean, top)


def _gradient(
    dtype: torch.dtype,
    grad: Tensor,
    x: Tensor,
    r: Tensor,
    dim: Dims,
    keepdim: bool,
    mask: Tensor | None,
) -> Tensor:
    kept = [1 if i in dim else size for i, size in enumerate(x.shape)]
    grad, r = grad.reshape(kept), r.detach().reshape(kept)
    x = only(mask, x, -math.inf)
    value = fused(_product, grad, x, r, dim)
    return _guarded_gradient(grad, x, r, dim, mask) if value is None else value


def _product(grad: Tensor, x: Tensor, r: Tensor, dim: Dims) -> Tensor:
    return grad * _softmax(x, r, dim)


def _softmax(x: Tensor, r: Tensor, dim: Dims) -> Tensor:
    """r is as good as the top to hold exp in range; the sum takes away what r was rounded by."""
    if len(dim) == 1:
        return torch.softmax(x, dim[0])
    weight = (x - r).exp()
    return weight / weight.sum(dim, keepdim=True)


def _guarded_gradient(grad: Tensor, x: Tensor, r: Tensor, dim: Dims, mask: Tensor | None) -> Tensor:
    """g times the softmax of the elements that take part. A row of NaN that nobody asked for has
    none either (G1)."""
    live = both((r != -math.inf) & ((r == r) | (grad != 0)), mask)
    level = torch.where(r.abs() < math.inf, r, 0.0)
    weight = _softmax(settled(x, r), level, dim)
    return torch.where(live, grad, 0.0) * torch.where(live, weight, 0.0)


class _Reduction(Rows):
    """Integers promote, and the rows may lie along several dims."""

    def __call__(self, x: Any, mask: Any, dim: Any, keepdim: Any = False) -> Tensor:
        if row_obstacle(x, mask) is not None:
            return self.general(x, mask, (dim, keepdim))
        if mask is not None and mask.shape != x.shape:
            check_mask_shape(self.name, x, mask)
        dims, keepdim = place = self.placed(x.dim(), dim, keepdim)
        if x.requires_grad and torch.is_grad_enabled():
            return self.apply((KERNEL, place), x, mask)
        return self.kernel(x, dims, keepdim, mask)

    def operand(self, x: Any) -> Tensor:
        return as_floating(self.name, x)

    def placed(self, ndim: int, dim: Any, keepdim: Any = False) -> Place:
        if type(keepdim) is not bool:
            raise TypeError(f"{self.name}: keepdim must be a bool, got {type(keepdim).__name__}")
        if type(dim) is int:
            return (wrapped(self.name, dim, ndim),), keepdim
        return self._dims(ndim, dim), keepdim

    def _dims(self, ndim: int, dim: int | Sequence[int]) -> Dims:
        given = dim if isinstance(dim, tuple | list) else (dim,)
        dims = sorted(wrapped(self.name, one, ndim) for one in given)
        if not dims:
            raise RuntimeError(f"{self.name}: expected at least one dim to reduce, got {dim!r}")
        for one in dims:
            if dims.count(one) > 1:
                raise RuntimeError(
                    f"{self.name}: dim {one} appears multiple times in the list of dims"
                )
        return tuple(dims)


_logsumexp = _Reduction("logsumexp", _value, _gradient, _composite, keeps_input=True)


def logsumexp(
    x: Tensor,
    dim: int | Sequence[int],
    keepdim: bool = False,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    r"""log(sum(exp(x))) along dim, with a gradient also where the sum is 0 or infinite.

    .. math:: r = \log \sum_j m_j \exp(x_j), \qquad \frac{\partial r}{\partial x_i} =
              \exp(x_i - r)

    torch's value is -inf for a row of -inf and +inf for one that holds +inf, as here, but its
    gradient is NaN there. Here it is 0 in a row that is all -inf or all masked, and 1/k at each
    of k times +inf.

    Args:
        x: a tensor of any shape.
        dim: the dimension to reduce, or a tuple of them.
        keepdim: keep the reduced dimensions, with size 1.
        mask: a bool tensor that broadcasts to x's shape, True where an element takes part. What
            is masked is never read: its gradient is 0, even if it is NaN.

    Returns:
        A tensor of x's dtype (integers give the default dtype). Half types compute in float32 and
        round once. A row of finite numbers gives at most finfo(dtype).max. A NaN that takes part
        gives NaN; the gradient is still 0 where the upstream gradient is.

    Raises:
        IndexError: dim out of range.
        TypeError: complex, sparse, nested or quantized tensors; a mask that is not bool.
        RuntimeError: no dim, or one twice; a mask that does not broadcast to x's shape, or on
            another device.

    >>> logsumexp(torch.tensor([[0.0, 0.0], [float("-inf"), float("-inf")]]), -1)
    tensor([0.6931,   -inf])
    >>> logsumexp(torch.tensor([0.0, 9.0, 0.0]), 0, mask=torch.tensor([True, False, True]))
    tensor(0.6931)

    Source: torch.logsumexp; csrc/cpu/rows.cpp.
    """
    return _logsumexp(x, mask, dim, keepdim)
