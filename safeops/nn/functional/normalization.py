"""layer_norm, rms_norm and group_norm, of rows whose squares overflow and of rows without variance.

A look at the inverse deviations, which torch computes anyhow, shows on the CPU whether torch's own
result stands. Elsewhere torch's op gets the rows scaled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import is_empty, readable, sizes
from ._scaled import counted, regular, rows_of, small, taken, thin


def layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""(x - mean) / sqrt(var + eps) over the last dims, of any finite row.

    .. math:: y = w \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b

    torch gives 0 for a row whose squares overflow ([1e30, -1e30] in float32), and NaN for a
    constant one if eps is 0. Here the first is computed from the scaled row (here 1 and -1, with
    its gradient), and the second is 0, with the gradient 0.

    Args:
        input: a tensor of any shape.
        normalized_shape: the sizes of the last dims, which are normalized.
        weight, bias: of that shape.
        eps: is added to the variance. Does not count where the variance needs a scale.

    Returns:
        A tensor of input's shape and dtype, with torch's own bits where torch's result stands.
        A row that holds NaN or ±inf is NaN.

    Raises:
        RuntimeError: what torch raises.

    >>> import torch
    >>> layer_norm(torch.tensor([1e30, -1e30]), [2])
    tensor([ 1., -1.])
    >>> layer_norm(torch.tensor([3.0, 3.0]), [2], eps=0.0)
    tensor([0., 0.])

    Source: torch.nn.functional.layer_norm.
    """
    if not _fitting(input, normalized_shape):
        return F.layer_norm(input, normalized_shape, weight, bias, eps)
    if readable(input):
        value, _, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
        if regular(rstd):
            return value
    x = rows_of(input, _last(normalized_shape), eps).settled(input)
    return F.layer_norm(x, normalized_shape, weight, bias, counted(eps, input.dtype))


def rms_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    r"""x / sqrt(mean(x^2) + eps) over the last dims, of any finite row.

    .. math:: y = w \frac{x}{\sqrt{\frac{1}{n} \sum_j x_j^2 + \epsilon}}

    torch gives 0 for a row whose squares overflow (1e30 in float32), and NaN for one of zeros if
    eps is 0. Here the first is computed from the scaled row, and the second is 0, with the
    gradient 0.

    Args:
        input: a tensor of any shape.
        normalized_shape: the sizes of the last dims, which are normalized.
        weight: of that shape.
        eps: is added to the mean square; None: as torch, the dtype's own eps.

    Returns:
        A tensor of input's shape and dtype, with torch's own bits where torch's result stands.
        A row that holds NaN is NaN.

    Raises:
        RuntimeError: what torch raises.

    >>> import torch
    >>> rms_norm(torch.tensor([1e30, -1e30]), [2])
    tensor([ 1., -1.])

    Source: torch.nn.functional.rms_norm.
    """
    if not _fitting(input, normalized_shape):
        return F.rms_norm(input, normalized_shape, weight, eps)
    if readable(input) and not thin(eps, input.dtype) and small(input):
        return F.rms_norm(input, normalized_shape, weight, eps)
    x = rows_of(input, _last(normalized_shape), eps, centred=False).settled(input)
    return F.rms_norm(x, normalized_shape, weight, counted(eps, input.dtype))


def _fitting(input: Tensor, normalized_shape: list[int]) -> bool:
    """A call in which torch finds no fault."""
    if not taken(input) or is_empty(input) or not isinstance(normalized_shape, list | tuple):
        return False
    size = len(normalized_shape)
    return size > 0 and tuple(sizes(input)[-size:]) == tuple(normalized_shape)


def _last(normalized_shape: list[int]) -> tuple[int, ...]:
    return tuple(range(-len(normalized_shape), 0))


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""(x - mean) / sqrt(var + eps) over groups of channels, of any finite group.

    .. math:: y = w \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b

    torch gives 0 for a group whose squares overflow, and NaN for a constant one if eps is 0. Here
    the first is computed from the scaled group, and the second is 0, with the gradient 0.

    Args:
        input: a tensor of shape [batch, channels, ...].
        num_groups: of channels, each normalized for itself.
        weight, bias: one number a channel.
        eps: is added to the variance. Does not count where the variance needs a scale.

    Returns:
        A tensor of input's shape and dtype, with torch's own bits where torch's result stands.
        A group that holds NaN or ±inf is NaN.

    Raises:
        RuntimeError, ValueError: what torch raises, for one value per channel among others.

    >>> import torch
    >>> group_norm(torch.tensor([[1e30, -1e30, 2e30, 6e30]]), 2)
    tensor([[ 1.0000, -1.0000, -1.0000,  1.0000]])

    Source: torch.nn.functional.group_norm.
    """
    if not _grouped(input, num_groups, weight, bias):
        return F.group_norm(input, num_groups, weight, bias, eps)
    if readable(input) and _dense(input, num_groups):
        batch, channels = input.shape[:2]
        inner = input.numel() // (batch * channels)
        value, _, rstd = torch.native_group_norm(
            input, weight, bias, batch, channels, inner, num_groups, eps
        )
        if regular(rstd):
            return value
    x = _settled_groups(input, num_groups, eps)
    return F.group_norm(x, num_groups, weight, bias, counted(eps, input.dtype))


def _grouped(input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> bool:
    """A call in which torch finds no fault."""
    if not taken(input, weight, bias) or input.dim() < 2 or groups < 1 or is_empty(input):
        return False
    channels = sizes(input)[1]
    shapes = [tuple(sizes(t)) for t in (weight, bias) if t is not None]
    return channels % groups == 0 and all(shape == (channels,) for shape in shapes)


def _dense(input: Tensor, groups: int) -> bool:
    """torch copies what lies otherwise; one value per group is an error that it raises."""
    if input.numel() == groups:
        return False
    if input.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(input.dim())
    return last is not None and input.is_contiguous(memory_format=last)


def _settled_groups(input: Tensor, groups: int, eps: float) -> Tensor:
    batch, channels, *rest = sizes(input)

    def by_channel(row: Tensor) -> Tensor:
        each = row.expand(batch, groups, channels // groups)
        return each.reshape(batch, channels, *(1 for _ in rest))

    rows = rows_of(input.reshape(batch, groups, -1), -1, eps)
    return rows.settled(input, by_channel)
