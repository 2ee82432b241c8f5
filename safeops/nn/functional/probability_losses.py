"""Losses of probabilities: binary_cross_entropy, kl_div."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import is_empty, readable
from ...ops._options import COMPUTE
from ...ops._scaling import ours, regular, saturated, widened
from ...ops.log import safe_log
from ._reductions import named, recast, reduced


def differentiates(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def common(*tensors: Any) -> tuple[torch.dtype, list[Tensor]]:
    """The dtype of the result, and the tensors in its compute type."""
    dtype = torch.promote_types(tensors[0].dtype, tensors[1].dtype)
    return dtype, [widened(x).to(COMPUTE[dtype]) for x in tensors]


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""-w (t log(p) + (1 - t) log(1 - p)), logarithms held at -100.

    .. math:: \frac{\partial f}{\partial p} = w \frac{p - t}{\max(p (1 - p), 10^{-12})}, \qquad
              \frac{\partial f}{\partial t} = w (\log(1 - p) - \log p)

    torch's value is finite; its gradient to the target is ±inf at p = 0 and 1, that to the input
    is ±inf or NaN there in float16, where 1e-12 is 0, and the mean of nothing is NaN. Here the
    logarithms of the gradient are held at -100 too, half types compute in float32 and saturate,
    and the mean of nothing is 0.

    Args:
        input, target, weight, reduction: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.binary_cross_entropy, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.binary_cross_entropy does.

    >>> p = torch.tensor([0.0], dtype=torch.float16, requires_grad=True)
    >>> binary_cross_entropy(p, torch.ones_like(p)).backward()
    >>> p.grad
    tensor([-65504.], dtype=torch.float16)

    Source: torch.nn.functional.binary_cross_entropy.
    """
    same = ours(input, target) and input.dtype is target.dtype and input.shape == target.shape
    if not same or not (weight is None or ours(weight)):
        return F.binary_cross_entropy(input, target, weight, size_average, reduce, reduction)
    if readable(input):
        value = F.binary_cross_entropy(input, target, weight, size_average, reduce, reduction)
        if regular(value) and _inside(input, target):
            return value
    p, t = widened(input), widened(target)
    loss = F.binary_cross_entropy(p, t.detach(), reduction="none")
    loss = loss + (t - t.detach()) * (_log(1 - p) - _log(p))
    loss = loss if weight is None else loss * widened(weight)
    return reduced(loss, named(size_average, reduce, reduction), input.dtype)


def _inside(p: Tensor, target: Tensor) -> bool:
    """No p is so near 0 or 1 that a gradient that is wanted overflows."""
    half = p.dtype is torch.float16 and differentiates(p)
    if not half and not differentiates(target):
        return True
    margin = 2.0**-9 if half else 0.0
    return regular(p, above=margin, below=1 - margin)


def _log(p: Tensor) -> Tensor:
    """log(p), held at -100 without a slope."""
    held = p.detach() > math.exp(-100)
    return torch.where(held | (p.detach() != p.detach()), torch.where(held, p, 1.0).log(), -100.0)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    r"""t (log(t) - x), and 0 where t is 0.

    .. math:: f(x, t) = t (\log t - x), \qquad \frac{\partial f}{\partial x} = -t, \qquad
              \frac{\partial f}{\partial t} = \log t + 1 - x

    torch gives NaN for a target of 0 (or a log target of -inf) at an input of -inf, and as
    gradient to a target of 0. Here all of them are 0. A target below 0 has the logarithm of the
    smallest positive number.

    Args:
        input, target, reduction, log_target: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.kl_div, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.kl_div does.

    >>> kl_div(torch.tensor([0.0, float("-inf")]), torch.tensor([1.0, 0.0]), reduction="sum")
    tensor(0.)

    Source: torch.nn.functional.kl_div.
    """
    if not ours(input, target):
        return F.kl_div(input, target, size_average, reduce, reduction, log_target)
    if readable(input) and readable(target):
        value = F.kl_div(input, target, size_average, reduce, reduction, log_target)
        if regular(value) and (log_target or _positive(target)):
            return value
    input, target = recast(input, target)
    dtype, (x, t) = common(input, target)
    loss = (_kl_of_logs if log_target else _kl)(x, t)
    word = named(size_average, reduce, reduction)
    if word != "batchmean":
        return reduced(loss, word, dtype)
    total = torch.full((), input.shape[0] if input.dim() else 1, dtype=x.dtype, device=x.device)
    return reduced(loss, "mean", dtype, total)


def _positive(target: Tensor) -> bool:
    return not differentiates(target) or is_empty(target) or target.detach().amin().item() > 0


def _kl(x: Tensor, t: Tensor) -> Tensor:
    none = t.detach() == 0
    x = torch.where(none & x.detach().isinf(), 0.0, x)
    weight = torch.where(none, 0.0, t)
    return weight * safe_log(torch.where(none, 1.0, t)) - weight * x


def _kl_of_logs(x: Tensor, t: Tensor) -> Tensor:
    none = t.detach() == -math.inf
    x = torch.where(none & x.detach().isinf(), 0.0, x)
    t = torch.where(none, 0.0, t)
    return torch.where(none, 0.0, saturated(t.exp(), t.dtype)) * (t - x)
