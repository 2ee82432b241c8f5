"""batch_norm, whose running statistics stay numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import is_empty, readable, sizes, transforms_active
from ...ops._row_formulas import finite
from ._scaled import Rows, counted, regular, rows_of, taken, thin

PerChannel = tuple[Tensor | None, ...]  # running mean and variance, weight, bias
Accepted = bool | Tensor  # True, or what the device finds


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    r"""(x - mean) / sqrt(var + eps) of each channel, with statistics that stay finite.

    .. math:: y = w \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b

    torch puts the NaN of one batch into the running statistics for good. Here a batch that holds
    NaN or ±inf leaves them as they are, while its output is what torch gives. Squares that overflow
    ([1e30, -1e30] in float32) give torch an infinite variance: here the channel is scaled, and the
    running statistics saturate. A variance of 0 with eps 0 gives NaN in torch, here 0, with the
    gradient 0.

    Args:
        input: a tensor of shape [batch, channels, ...].
        running_mean, running_var: one number a channel; updated in training, without a wait for
            the device.
        weight, bias: one number a channel.
        training: normalize by the statistics of the batch, not by the running ones.
        momentum: the weight of the new statistics.
        eps: is added to the variance. Does not count where the variance needs a scale.

    Returns:
        A tensor of input's shape and dtype, with torch's own bits where torch's result stands.
        A channel that holds NaN or ±inf is NaN in training.

    Raises:
        RuntimeError, ValueError: what torch raises, for one value per channel among others.

    >>> import torch
    >>> mean, var = torch.zeros(1), torch.ones(1)
    >>> batch_norm(torch.tensor([[1.0], [float("nan")]]), mean, var, training=True).T
    tensor([[nan, nan]])
    >>> mean, var
    (tensor([0.]), tensor([1.]))

    Source: torch.nn.functional.batch_norm.
    """
    per_channel = (running_mean, running_var, weight, bias)
    if not _faultless(input, per_channel, training, eps):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if training:
        return batch_norm_training(input, *per_channel, momentum, eps)[0]
    return by_running_statistics(input, *per_channel, momentum, eps)


def _faultless(input: Tensor, per_channel: PerChannel, training: bool, eps: float) -> bool:
    """A call that may need a guard, and in which torch finds no fault."""
    if not fitting(input, per_channel):
        return False
    if not training:
        return thin(eps, input.dtype)
    return eps > 0 and input.numel() != sizes(input)[1]


def fitting(input: Tensor, per_channel: PerChannel) -> bool:
    if not taken(input, *per_channel) or input.dim() < 2 or is_empty(input):
        return False
    shape = tuple(sizes(input)[1:2])
    both = (per_channel[0] is None) is (per_channel[1] is None)
    return both and all(t is None or tuple(sizes(t)) == shape for t in per_channel)


def batch_norm_training(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Accepted]:
    """The output, and whether the batch was finite, so that the running statistics took it: a bool
    where a look cost nothing, else a 0-dim bool tensor on the device."""
    running = [t for t in (running_mean, running_var) if t is not None]
    if readable(input) and all(map(readable, running)):
        before = [t.clone() for t in running]
        value, _, rstd = torch.native_batch_norm(
            input, weight, bias, running_mean, running_var, True, momentum, eps
        )
        if regular(rstd) and all(map(finite, running[1:])):
            return value, True
        _put(running, before)
    rows = rows_of(input, _but_channels(input), eps)
    mean, var = [torch.zeros_like(t) for t in running] or (None, None)
    value = F.batch_norm(
        rows.settled(input), mean, var, weight, bias, True, 1.0, counted(eps, input.dtype)
    )
    accepted = (rows.top < math.inf).all()
    try:
        _update(running, _unscaled(rows, mean, var), momentum, accepted)
    except RuntimeError:  # of a transform, which lets only torch's own op write what it captured
        if not transforms_active():
            raise
        return F.batch_norm(
            input, running_mean, running_var, weight, bias, True, momentum, eps
        ), accepted
    return value, accepted


def _put(targets: list[Tensor], values: list[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def _but_channels(input: Tensor) -> tuple[int, ...]:
    return (0, *range(2, input.dim()))


def _unscaled(rows: Rows, mean: Tensor | None, var: Tensor | None) -> list[Tensor]:
    """The statistics of the rows themselves."""
    if mean is None or var is None:
        return []
    if rows.scale is not None:
        scale = rows.scale.reshape(-1)
        mean, var = mean * scale, var * scale * scale
    if rows.dead is not None:
        mean = torch.where(rows.dead.reshape(-1), rows.level.reshape(-1), mean)
    return [mean, var]


@torch.no_grad()
def _update(running: list[Tensor], batch: list[Tensor], momentum: float, accepted: Tensor) -> None:
    """The exponential mean, saturated, if the batch was accepted."""
    for old, new in zip(running, batch, strict=True):
        limit = torch.finfo(old.dtype).max
        mixed = momentum * new.clamp(-limit, limit) + (1 - momentum) * old
        old.copy_(torch.where(accepted, mixed.clamp(-limit, limit), old))


def by_running_statistics(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    if running_mean is not None and running_var is not None and thin(eps, input.dtype):
        dead = running_var.detach() + eps == 0
        running_mean = torch.where(dead, 0.0, running_mean)
        running_var = torch.where(dead, 1.0, running_var)
        over = dead.view(-1, *(1 for _ in range(input.dim() - 2)))
        input = torch.where(over & (input == input), 0.0, input)
    return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
