"""Losses of densities: gaussian_nll_loss, poisson_nll_loss."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import is_empty, readable
from ...ops._options import COMPUTE
from ...ops._scaling import ours, regular, saturated, tangent, widened
from ...ops.exp import safe_exp
from ...ops.log import safe_log
from ._reductions import named, recast, reduced
from .probability_losses import common, differentiates


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    r"""(log(v) + (x - t)² / v) / 2, v = max(var, eps).

    .. math:: \frac{\partial f}{\partial x} = \frac{x - t}{v}, \qquad
              \frac{\partial f}{\partial v} = \frac{1}{2 v} - \frac{(x - t)^2}{2 v^2}

    torch gives inf, and gradients of ±inf or NaN, where the square or the quotient overflows, as
    soon as a variance is near 0 in float16. Here half types compute in float32, and what overflows
    saturates. The gradient to var is that at v, as in torch. With eps=0 the variance is held at
    the smallest normal number, with gradient 0.

    Args:
        input, target, var, full, eps, reduction: as in torch.

    Returns:
        As torch.nn.functional.gaussian_nll_loss, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.gaussian_nll_loss does; under torch.compile negative variances are
        not looked for.

    >>> x = torch.tensor([1e25], requires_grad=True)
    >>> gaussian_nll_loss(x, torch.zeros(1), torch.zeros(1)).backward()
    >>> x.grad
    tensor([1.0000e+31])

    Source: torch.nn.functional.gaussian_nll_loss.
    """
    spread = var if isinstance(var, Tensor) else input
    if not ours(input, target, spread):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)
    if readable(input) and readable(target) and readable(spread):
        value = F.gaussian_nll_loss(input, target, var, full, eps, reduction)
        if _small(value, spread, var, eps):
            return value
    spread = _spread(input, var)
    dtype = torch.promote_types(torch.promote_types(input.dtype, target.dtype), spread.dtype)
    x, t, v = [widened(one).to(COMPUTE[dtype]) for one in (input, target, spread)]
    loss = _gaussian(_difference(x, t), v, eps)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, dtype)


def _spread(x: Tensor, var: Tensor | float) -> Tensor:
    """var, to be broadcast to x."""
    if not isinstance(var, Tensor):
        return torch.full_like(x, var)
    return var.unsqueeze(-1) if var.shape != x.shape and var.shape == x.shape[:-1] else var


def _small(value: Tensor, spread: Tensor, var: Any, eps: float) -> bool:
    """So small a loss that the gradients, of which one divides by v once more, are in range."""
    bound = torch.finfo(value.dtype).max * min(eps, 1.0) * 2.0**-20
    if value.dtype is torch.float16 and not is_empty(spread):
        least = spread.detach().amin().item() if isinstance(var, Tensor) else var
        bound = 2.0**8 if least > 2.0**-5 else 0.0
    return regular(value) and bool((value.detach().abs() <= bound).all())


def _difference(x: Tensor, t: Tensor) -> Tensor:
    """x - t, saturated with its slope."""
    d = (x - t).detach()
    over = d.isinf() & x.detach().isfinite() & t.detach().isfinite()
    still = (x - x.detach()) - (t - t.detach())
    return torch.where(over, still + saturated(d, d.dtype), x - t)


def _gaussian(d: Tensor, var: Tensor, eps: float) -> Tensor:
    least = max(eps, torch.finfo(d.dtype).tiny)
    held = least + (var - var.detach()) if eps >= least else least
    v = torch.where(var.detach() < least, held, var)
    square = d.detach() / v.detach() * d.detach()
    over = square.isinf() & d.detach().isfinite()
    inside, scale = torch.where(over, 0.0, d), v.detach().rsqrt() * d.detach()
    slope = saturated(-scale / v.detach() * scale / 2, d.dtype)
    outside = tangent(d, saturated(d / v, d.dtype), over) + tangent(v, slope, over)
    value = 0.5 * (v.log() + inside / v * inside)
    return torch.where(over, outside + torch.finfo(d.dtype).max, value)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""exp(x) - t x, or x - t log(x + eps) if not log_input.

    .. math:: \frac{\partial f}{\partial x} = \exp(x) - t \quad \text{or} \quad
              1 - \frac{t}{x + \epsilon}

    torch gives inf where exp overflows, inf or NaN where x + eps is not positive, and with
    ``full`` a NaN gradient to a target of 0. Here the first saturates and keeps its slope, the
    logarithm is that of safe_log, the last gradient is that without Stirling's term, and half types
    compute in float32.

    Args:
        input, target, log_input, full, eps, reduction: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.poisson_nll_loss, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.poisson_nll_loss does.

    >>> poisson_nll_loss(torch.zeros(2), torch.zeros(2), log_input=False, eps=0.0)
    tensor(0.)

    Source: torch.nn.functional.poisson_nll_loss.
    """
    rest = (log_input, full, size_average, eps, reduce, reduction)
    if not ours(input, target):
        return F.poisson_nll_loss(input, target, *rest)
    if readable(input) and readable(target):
        value = F.poisson_nll_loss(input, target, *rest)
        if regular(value) and _away(input, target, log_input, full):
            return value
    input, target = recast(input, target)
    dtype, (x, t) = common(input, target)
    loss = safe_exp(x) - t * x if log_input else x - t * safe_log(x + eps)
    loss = loss + _stirling(t) if full else loss
    return reduced(loss, named(size_average, reduce, reduction), dtype)


def _away(x: Tensor, t: Tensor, log_input: bool, full: bool) -> bool:
    """Gradients that are wanted are finite where the value is."""
    if full and differentiates(t) and not (is_empty(t) or t.detach().amin().item() > 0):
        return False
    if log_input or x.dtype is not torch.float16 or not differentiates(x):
        return True
    return is_empty(x) or x.detach().amin().item() > 2.0**-6


def _stirling(t: Tensor) -> Tensor:
    large = t.detach() > 1
    kept = torch.where(large, t, 2.0)
    return torch.where(large, kept * kept.log() - kept + 0.5 * (2 * math.pi * kept).log(), 0.0)
