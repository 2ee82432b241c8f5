"""softmin: softmax of the negated rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import converted
from .softmax import softmax


def softmin(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    r"""exp(-x) / sum(exp(-x)) along dim, and 0 in a row that is all +inf.

    .. math:: y_i = \frac{\exp(-x_i)}{\sum_j \exp(-x_j)}

    torch gives NaN for a row of +inf, with a NaN gradient; here both are 0. One -inf takes all of
    a row, and k of them 1/k each.

    Args:
        input: a tensor of any shape.
        dim: the dimension along which the result sums to 1.
        dtype: convert input to this first.

    Returns, Raises: as softmax.

    >>> softmin(torch.tensor([float("inf"), float("inf")]), 0)
    tensor([0., 0.])

    Source: softmax.
    """
    return softmax(-(input if dtype is None else converted("softmin", input, dtype)), dim)
