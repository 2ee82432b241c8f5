"""Losses that are finite but for their mean over nothing: of differences, and of logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import is_empty, readable
from ...ops._scaling import ours, regular, tangent, widened
from ._reductions import named, reduced

Loss = Callable[..., Tensor]


def _means_nothing(input: Any, target: Any, word: str) -> bool:
    """A mean over no element, of tensors that broadcast to one another."""
    both = ours(input) and isinstance(target, Tensor)
    return both and word == "mean" and (is_empty(input) or is_empty(target))


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    r"""(x - t)\ :sup:`2`, and 0 for a mean over nothing.

    .. math:: f(x, t) = (x - t)^2, \qquad \frac{\partial f}{\partial x} = 2 (x - t)

    torch gives NaN for the mean of an empty selection, and inf where the square overflows: in
    float16 from a difference of 256 on. Here the first is 0, connected to the graph with gradient
    0; half types compute in float32, and what overflows saturates and keeps its gradient.

    Args:
        input, target, reduction, weight: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.mse_loss, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.mse_loss does.

    >>> mse_loss(torch.zeros(0), torch.zeros(0))
    tensor(0.)

    Source: torch.nn.functional.mse_loss.
    """
    more = () if weight is None else (weight,)
    word = named(size_average, reduce, reduction)
    if _means_nothing(input, target, word):
        return F.mse_loss(input, target, reduction="sum")
    same = ours(input, target, *more) and input.dtype is target.dtype
    if not same or weight is not None:
        return F.mse_loss(input, target, size_average, reduce, reduction, *more)
    if readable(input):
        value = F.mse_loss(input, target, size_average, reduce, reduction)
        if regular(value):
            return value
    return reduced(_square(widened(input) - widened(target)), word, input.dtype)


def _square(difference: Tensor) -> Tensor:
    """Saturated, with its own slope."""
    limit = torch.finfo(difference.dtype).max
    over = (difference.detach().abs() > math.sqrt(limit)) & difference.detach().isfinite()
    square = torch.where(over, limit, torch.where(over, 0.0, difference).square())
    return square + tangent(difference, 2 * difference, over)


def _but_for_nothing(loss: Loss, input: Any, target: Any, *rest: Any, **more: Any) -> Tensor:
    """torch's own, or its sum where a mean has nothing to divide by."""
    size_average, reduce, reduction = rest
    if _means_nothing(input, target, named(size_average, reduce, reduction)):
        return loss(input, target, reduction="sum", **more)
    words = {"size_average": size_average, "reduce": reduce, "reduction": reduction}
    return loss(input, target, **words, **more)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    r"""|x - t|, and 0 for a mean over nothing.

    .. math:: f(x, t) = |x - t|, \qquad \frac{\partial f}{\partial x} = \text{sign}(x - t)

    torch gives NaN for the mean of an empty selection. Here that is 0, connected to the graph with
    gradient 0; all else is torch's own.

    Args:
        input, target, reduction, weight: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns, Raises:
        As torch.nn.functional.l1_loss.

    >>> l1_loss(torch.zeros(0), torch.zeros(0))
    tensor(0.)

    Source: torch.nn.functional.l1_loss.
    """
    more = {} if weight is None else {"weight": weight}
    return _but_for_nothing(F.l1_loss, input, target, size_average, reduce, reduction, **more)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    r"""(x - t)² / (2 beta) up to beta, |x - t| - beta / 2 from there on; 0 for a mean over nothing.

    .. math:: f(x, t) = \tfrac{1}{2\beta} (x - t)^2 \text{ if } |x - t| < \beta, \text{ else }
              |x - t| - \tfrac{\beta}{2}

    torch gives NaN for the mean of an empty selection. Here that is 0, connected to the graph with
    gradient 0; all else is torch's own.

    Args:
        input, target, reduction, beta: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns, Raises:
        As torch.nn.functional.smooth_l1_loss.

    >>> smooth_l1_loss(torch.zeros(0), torch.zeros(0))
    tensor(0.)

    Source: torch.nn.functional.smooth_l1_loss.
    """
    return _but_for_nothing(
        F.smooth_l1_loss, input, target, size_average, reduce, reduction, beta=beta
    )


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    r"""(x - t)² / 2 up to delta, linear from there on, and 0 for a mean over nothing.

    .. math:: f(x, t) = \tfrac{1}{2} (x - t)^2 \text{ if } |x - t| \le \delta, \text{ else }
              \delta (|x - t| - \tfrac{\delta}{2})

    torch gives NaN for the mean of an empty selection. Here that is 0, connected to the graph with
    gradient 0; all else is torch's own.

    Args:
        input, target, reduction, delta, weight: as in torch.

    Returns, Raises:
        As torch.nn.functional.huber_loss.

    >>> huber_loss(torch.zeros(0), torch.zeros(0))
    tensor(0.)

    Source: torch.nn.functional.huber_loss.
    """
    more = {} if weight is None else {"weight": weight}
    if _means_nothing(input, target, reduction):
        return F.huber_loss(input, target, reduction="sum", delta=delta)
    return F.huber_loss(input, target, reduction=reduction, delta=delta, **more)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    r"""-(t log(s(x)) + (1 - t) log(1 - s(x))), s the sigmoid, and 0 for a mean over nothing.

    .. math:: f(x, t) = \log(1 + e^x) - t x, \qquad
              \frac{\partial f}{\partial x} = \sigma(x) - t

    torch gives NaN for the mean of an empty selection. Here that is 0, connected to the graph with
    gradient 0; all else is torch's own.

    Args:
        input, target, weight, reduction, pos_weight: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns, Raises:
        As torch.nn.functional.binary_cross_entropy_with_logits.

    >>> binary_cross_entropy_with_logits(torch.zeros(0), torch.zeros(0))
    tensor(0.)

    Source: torch.nn.functional.binary_cross_entropy_with_logits.
    """
    words = (size_average, reduce, reduction)
    more = {"weight": weight, "pos_weight": pos_weight}
    return _but_for_nothing(F.binary_cross_entropy_with_logits, input, target, *words, **more)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""log(1 + exp(-t x)), and 0 for a mean over nothing.

    .. math:: f(x, t) = \log(1 + e^{-t x}), \qquad
              \frac{\partial f}{\partial x} = -\frac{t}{1 + e^{t x}}

    torch gives inf, with a NaN gradient, where exp overflows: from a margin of -89 on in float32,
    and of -12 in float16. Here it is softplus(-t x), which does not; and the mean of an empty
    selection is 0, connected to the graph with gradient 0.

    Args:
        input, target, reduction: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns, Raises:
        As torch.nn.functional.soft_margin_loss, with its bits wherever that is regular.

    >>> soft_margin_loss(torch.tensor([-1000.0]), torch.ones(1))
    tensor(1000.)

    Source: torch.nn.functional.soft_margin_loss.
    """
    word = named(size_average, reduce, reduction)
    if _means_nothing(input, target, word):
        return F.soft_margin_loss(input, target, reduction="sum")
    if not ours(input, target) or input.dtype is not target.dtype:
        return F.soft_margin_loss(input, target, size_average, reduce, reduction)
    if readable(input) and readable(target):
        value = F.soft_margin_loss(input, target, size_average, reduce, reduction)
        if regular(value) and _moderate(input, target):
            return value
    x, t = widened(input), widened(target)
    return reduced(F.softplus(-t * x, threshold=50), word, input.dtype)


def _moderate(x: Tensor, target: Tensor) -> bool:
    """No exponential in torch's gradient overflows."""
    limit = 0.9 * math.log(torch.finfo(x.dtype).max)
    return is_empty(x) or bool((x.detach() * target.detach()).amin() > -limit)
