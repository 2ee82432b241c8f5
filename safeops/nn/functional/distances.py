"""Distances and directions, with torch.nn.functional's names and arguments."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import is_empty, readable
from ...ops._scaling import least_divisor, ours, regular, squeezed, unscaled, widened
from ...ops.mean import axes
from ...ops.vector_norm import scaled_norm


def _unit(x: Tensor, p: float, dim: Any, eps: float, sloped: bool) -> Tensor:
    """x / max(norm, eps), and 0 where that is 0 / 0; x in its compute type.

    sloped: the norm keeps its derivative where eps is larger, as in torch's cosine_similarity.
    """
    norm, scale = scaled_norm(x, p, axes(x, dim))
    bound = eps / scale
    below = bound + (norm - norm.detach()) if sloped else bound
    norm = torch.where(norm.detach() < bound, below, norm)
    zero = norm.detach() == 0
    return torch.where(zero, 0.0, x / scale / torch.where(zero, 1.0, norm))


def _norm_of(x: Tensor, p: float, dim: Any) -> Tensor | None:
    """torch's own norm where a look shows that a quotient by it is regular."""
    if not readable(x) or is_empty(x):
        return None
    norm = torch.linalg.vector_norm(x, p, dim, True)
    return norm if regular(norm, above=least_divisor(x.dtype)) else None


_together: Any = torch.broadcast_tensors


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    r"""x / max(norm(x), eps) along dim, and 0 at the zero vector if eps is 0.

    .. math:: f(x) = \frac{x}{\max(\lVert x \rVert_p, \epsilon)}

    torch gives 0 where the powers overflow, and NaN at the zero vector if eps is 0, as 1e-12 is in
    float16; its second derivative there is NaN. Here the first has its direction, and the second
    is 0, with gradient 1 / eps as in torch (saturated), or 0 if eps is 0.

    Args:
        input: a tensor of any shape.
        p: the order of the norm.
        dim: the dimension along which the result has norm 1, or a tuple of them.
        eps: the smallest norm to divide by; in float32 for half types.
        out: as in torch, whose own function is then called.

    Returns:
        As torch.nn.functional.normalize, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.normalize does.

    >>> normalize(torch.tensor([[3e30, 4e30], [0.0, 0.0]]), eps=0.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])

    Source: torch.nn.functional.normalize, on rows divided by a power of two.
    """
    if out is not None or not ours(input) or isinstance(p, str) or is_empty(input):
        return F.normalize(input, p, dim, eps, out)
    norm = _norm_of(input, p, dim)
    if norm is not None:
        return input / norm.clamp_min(eps).expand_as(input)
    return _unit(widened(input), float(p), dim, eps, sloped=False).to(input.dtype)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    r"""The cosine of the angle between x1 and x2 along dim, 0 if one is the zero vector.

    .. math:: f(x, y) = \frac{x \cdot y}{\max(\lVert x \rVert, \epsilon)
              \max(\lVert y \rVert, \epsilon)}

    torch gives 0 where the squares overflow, and NaN at the zero vector if eps is 0, as 1e-8 is in
    float16; its second derivative there is NaN. Here the first is the true cosine, and the second
    0, with gradient y / (norm(y) eps) as in torch (saturated), or 0 if eps is 0.

    Args:
        x1, x2: tensors of shapes that broadcast.
        dim: the dimension of the vectors.
        eps: the smallest norm to divide by; in float32 for half types.

    Returns:
        As torch.nn.functional.cosine_similarity, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.cosine_similarity does.

    >>> cosine_similarity(torch.tensor([3e30, 0.0]), torch.tensor([1e30, 1e30]), dim=0)
    tensor(0.7071)

    Source: torch.nn.functional.cosine_similarity, on rows divided by a power of two.
    """
    if not ours(x1, x2) or x1.dtype is not x2.dtype or is_empty(x1) or is_empty(x2):
        return F.cosine_similarity(x1, x2, dim, eps)
    if x1.shape != x2.shape:
        x1, x2 = _together(x1, x2)
    first = _norm_of(x1, 2, dim)
    second = None if first is None else _norm_of(x2, 2, dim)
    if first is not None and second is not None:
        return ((x1 / _raised(first, eps)) * (x2 / _raised(second, eps))).sum(dim)
    units = [_unit(widened(x), 2, dim, eps, sloped=True) for x in (x1, x2)]
    return (units[0] * units[1]).sum(dim).to(x1.dtype)


def _raised(norm: Tensor, eps: float) -> Tensor:
    """At least eps, with the norm's own derivative, as torch does it."""
    norm = norm.clone()
    with torch.no_grad():
        norm.clamp_min_(eps)
    return norm


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    r"""The norm of x1 - x2 + eps along the last dimension.

    .. math:: f(x, y) = \lVert x - y + \epsilon \rVert_p

    torch's gradient of equal vectors is inf in float16, its second derivative is NaN if eps is 0,
    and where the powers overflow its value is inf. Here the gradient is the true one, 0 at
    distance 0, the second derivative is finite, and what overflows is right and saturates.

    Args:
        x1, x2: tensors of shapes that broadcast.
        p: the order of the norm.
        eps: added to the difference, in the dtype of the tensors, as in torch.
        keepdim: keep the last dimension, with size 1.

    Returns:
        As torch.nn.functional.pairwise_distance, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.pairwise_distance does.

    >>> pairwise_distance(torch.tensor([[3e30, 0.0]]), torch.tensor([[0.0, 4e30]]))
    tensor([5.0000e+30])

    Source: torch.nn.functional.pairwise_distance, on rows divided by a power of two.
    """
    if not ours(x1, x2) or is_empty(x1) or is_empty(x2):
        return F.pairwise_distance(x1, x2, p, eps, keepdim)
    if readable(x1) and readable(x2) and p >= 1:
        value = F.pairwise_distance(x1, x2, p, eps, keepdim)
        if regular(value, above=least_divisor(value.dtype)) and (p == 1 or p >= 2):
            return value
    return _distance(x1, x2, p, eps, keepdim)


def _distance(x1: Tensor, x2: Tensor, p: float, eps: float, keepdim: bool) -> Tensor:
    """A quarter of the difference where that overflows."""
    difference = x1 - x2
    over = difference.detach().isinf() & x1.detach().isfinite() & x2.detach().isfinite()
    part = torch.where(over.any(-1, keepdim=True), 0.25, 1.0).to(difference.dtype)
    wide = widened(x1 * part - x2 * part + eps * part)
    norm, scale = scaled_norm(wide, float(p), (wide.dim() - 1,) if wide.dim() else ())
    value = unscaled(norm, scale / part.to(scale.dtype), difference.dtype)
    return squeezed(value, (-1,), keepdim)
