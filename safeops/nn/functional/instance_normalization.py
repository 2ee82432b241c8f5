"""instance_norm, whose running statistics stay numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import sizes
from ._scaled import thin
from .batch_normalization import (
    Accepted,
    PerChannel,
    batch_norm_training,
    by_running_statistics,
    fitting,
)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""(x - mean) / sqrt(var + eps) of each channel of each sample.

    .. math:: y = w \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b

    As batch_norm: running statistics are not updated from a batch that holds NaN or ±inf, squares
    do not overflow, and no variance gives 0, with the gradient 0.

    Args:
        input: a tensor of shape [batch, channels, ...].
        running_mean, running_var: one number a channel; updated if use_input_stats.
        weight, bias: one number a channel.
        use_input_stats: normalize by the statistics of the sample, not by the running ones.
        momentum: the weight of the new statistics.
        eps: is added to the variance. Does not count where the variance needs a scale.

    Returns:
        A tensor of input's shape and dtype, with torch's own bits where torch's result stands.
        A channel of a sample that holds NaN or ±inf is NaN.

    Raises:
        RuntimeError, ValueError: what torch raises, for one value per channel among others.

    >>> import torch
    >>> instance_norm(torch.tensor([[[1e30, -1e30], [1.0, 3.0]]]))
    tensor([[[ 1.0000, -1.0000],
             [-1.0000,  1.0000]]])

    Source: torch.nn.functional.instance_norm.
    """
    per_channel = (running_mean, running_var, weight, bias)
    if not _faultless_samples(input, per_channel, use_input_stats, eps):
        return F.instance_norm(
            input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    if not use_input_stats:
        return by_running_statistics(input, *per_channel, momentum, eps)
    return _by_own_statistics(input, *per_channel, momentum, eps)


def _faultless_samples(
    input: Tensor, per_channel: PerChannel, use_input_stats: bool, eps: float
) -> bool:
    """A call that may need a guard, and in which torch finds no fault."""
    if not fitting(input, per_channel):
        return False
    if not use_input_stats:
        return thin(eps, input.dtype)
    return eps >= 0 and math.prod(sizes(input)[2:]) != 1


def _by_own_statistics(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Samples become channels, as in torch, which takes running statistics in input's dtype."""
    batch, channels, *rest = sizes(input)
    running = [None if t is None else t.to(input.dtype) for t in (running_mean, running_var)]
    mean, var, weight, bias = (
        None if t is None else t.repeat(batch) for t in (*running, weight, bias)
    )
    rows = input.contiguous().view(1, batch * channels, *rest)
    value, accepted = batch_norm_training(rows, mean, var, weight, bias, momentum, eps)
    for target, each in ((running_mean, mean), (running_var, var)):
        if target is not None and each is not None:
            _keep_mean(target, each.view(batch, channels), accepted)
    return value.view(sizes(input))


@torch.no_grad()
def _keep_mean(target: Tensor, each: Tensor, accepted: Accepted) -> None:
    mean = each.mean(0)
    target.copy_(torch.where(accepted, mean, target) if isinstance(accepted, Tensor) else mean)
