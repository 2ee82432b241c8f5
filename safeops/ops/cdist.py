"""cdist: distances between all pairs, also of vectors whose differences have huge powers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._route import is_empty, readable
from ._row_formulas import finite
from ._scaling import ours, power_scale, saturated


def _guarded(x1: Tensor, x2: Tensor, p: float, compute_mode: str) -> Tensor:
    """One scale for all pairs of a batch."""
    order = p if p < math.inf else 1.0
    scale = torch.maximum(power_scale(x1, (-2, -1), order), power_scale(x2, (-2, -1), order))
    value = torch.cdist(_sized(x1, 1 / scale), _sized(x2, 1 / scale), p, compute_mode)
    return _sized(value, scale)


def _sized(x: Tensor, factor: Tensor) -> Tensor:
    """x * factor, saturated, with the derivative 1: the norm's is the same for x and x / scale, and
    cdist has no second one."""
    fixed = x.detach()
    return torch.where(factor == 1, x, (x - fixed) + saturated(fixed * factor, x.dtype))


def cdist(
    x1: Tensor,
    x2: Tensor,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:
    r"""The p-norm distance of every row of x1 from every row of x2.

    .. math:: r_{ij} = \left(\sum_k |x_{ik} - y_{jk}|^p\right)^{1/p}

    torch's gradient at distance 0 is 0; where the powers overflow its value is inf and its
    gradient 0 or NaN. Here the value there is right and saturates, and the gradient is the true
    one.

    Args:
        x1, x2: tensors of shapes [..., P, M] and [..., R, M].
        p: the order of the norm.
        compute_mode: as in torch.

    Returns:
        As torch.cdist, [..., P, R], with its bits wherever that is finite.

    Raises:
        What torch.cdist does.

    >>> cdist(torch.tensor([[3e30, 0.0]]), torch.tensor([[0.0, 4e30]]))
    tensor([[5.0000e+30]])

    Source: torch.cdist, on rows divided by a power of two.
    """
    if not ours(x1, x2) or is_empty(x1) or is_empty(x2) or x1.dim() < 2 or x2.dim() < 2:
        return torch.cdist(x1, x2, p, compute_mode)
    if readable(x1) and readable(x2):
        value = torch.cdist(x1, x2, p, compute_mode)
        if finite(value):
            return value
    return _guarded(x1, x2, p, compute_mode)
