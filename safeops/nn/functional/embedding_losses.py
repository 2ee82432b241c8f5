"""Losses of vectors: cosine_embedding_loss, triplet_margin_loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import readable
from ...ops._scaling import ours, regular, row_scale, widened
from ._reductions import named, recast, reduced
from .distances import pairwise_distance

_EPSILON = 1e-12  # torch's own


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""1 - cos(x, y) where the target is 1, max(0, cos(x, y) - margin) where it is -1.

    .. math:: \cos(x, y) = \frac{x \cdot y}{\sqrt{(x \cdot x + 10^{-12}) (y \cdot y + 10^{-12})}}

    torch gives NaN where the squares overflow, as those of 300 do in float16, and for the zero
    vector in float16, where 1e-12 is 0. Here the first has its cosine and the second the cosine 0;
    half types compute in float32, and gradients saturate.

    Args:
        input1, input2, target, margin, reduction: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.cosine_embedding_loss, with its bits wherever that is finite.

    Raises:
        What torch.nn.functional.cosine_embedding_loss does.

    >>> x = torch.tensor([[2.0**100, 0.0]])
    >>> cosine_embedding_loss(x, x, torch.ones(1))
    tensor(0.)

    Source: torch.nn.functional.cosine_embedding_loss, on rows divided by a power of two.
    """
    rest = (target, margin, size_average, reduce, reduction)
    if not ours(input1, input2) or input1.dtype is not input2.dtype:
        return F.cosine_embedding_loss(input1, input2, *rest)
    if readable(input1) and readable(input2):
        value = F.cosine_embedding_loss(input1, input2, *rest)
        if regular(value):
            return value
    input1, input2 = recast(input1, input2)
    cosine = _cosine(widened(input1), widened(input2))
    loss = torch.where(target == 1, 1 - cosine, 0.0)
    loss = loss + torch.where(target == -1, (cosine - margin).clamp_min(0.0), 0.0)
    return reduced(loss, named(size_average, reduce, reduction), input1.dtype)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    lengths, parts = [], []
    for one in (x, y):
        scale = row_scale(one, -1)
        part = one / scale
        lengths.append(((part * part).sum(-1) + _EPSILON / (scale * scale).squeeze(-1)).sqrt())
        parts.append(part)
    return (parts[0] * parts[1]).sum(-1) / (lengths[0] * lengths[1])


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""max(0, margin + d(a, p) - d(a, n)), d as in pairwise_distance.

    .. math:: f(a, p, n) = \max(0, \text{margin} + \lVert a - p + \epsilon \rVert
              - \lVert a - n + \epsilon \rVert)

    torch gives NaN where both distances overflow, and its second derivative at equal vectors is
    NaN if eps is 0. Here the distances are right and saturate, and that is finite.

    Args:
        anchor, positive, negative, margin, p, eps, swap, reduction: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.triplet_margin_loss, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.triplet_margin_loss does.

    >>> x = torch.full((1, 2), 1e30)
    >>> triplet_margin_loss(x, x, -x)
    tensor(0.)

    Source: torch.nn.functional.triplet_margin_loss.
    """
    tensors, word = (anchor, positive, negative), named(size_average, reduce, reduction)
    if not ours(*tensors) or len({x.dim() for x in tensors}) > 1 or margin <= 0:
        return F.triplet_margin_loss(*tensors, margin, p, eps, swap, reduction=word)
    anchor, positive, negative = recast(*tensors)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, pairwise_distance(positive, negative, p, eps))
    loss = (margin + near - far).clamp_min(0)
    return _plain(loss, word) if readable(loss) else reduced(loss, word, loss.dtype)


def _plain(loss: Tensor, reduction: str) -> Tensor:
    """torch's own reduction where a look shows that it is right."""
    value = loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
    return value if regular(value) else reduced(loss, reduction, loss.dtype)
