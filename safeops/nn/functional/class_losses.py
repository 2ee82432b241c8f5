"""Losses of classes: cross_entropy, nll_loss, ctc_loss."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import readable, sizes
from ...ops._row_formulas import finite
from ...ops._scaling import ours, regular, widened
from ...ops.log_softmax import log_softmax
from ._reductions import named, recast, reduced

_FAR = -1e30  # a logarithm so small that no alignment through it counts, and any number fits


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""-w log(softmax(x)) at the target class, and 0 for a mean over no target.

    .. math:: f(x, t) = -w_t \log \frac{\exp(x_t)}{\sum_c \exp(x_c)}

    torch gives NaN for the mean where all targets are ignored (or their weights are 0), for class
    probabilities of 0 at a logit of -inf, and as gradient of an ignored row of -inf. Here the
    first is 0, connected to the graph with gradient 0; the second counts 0 · -inf as 0; an ignored
    row is not read. A target at a logit of -inf costs +inf, as in torch.

    Args:
        input, target, weight, ignore_index, reduction, label_smoothing: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.cross_entropy, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.cross_entropy does.

    >>> cross_entropy(torch.zeros(2, 3), torch.tensor([-100, -100]))
    tensor(0.)

    Source: log_softmax; torch.nn.functional.cross_entropy.
    """
    options: dict[str, Any] = {
        "size_average": size_average,
        "ignore_index": ignore_index,
        "reduce": reduce,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
    }
    whole = not target.is_floating_point()
    if not ours(input) or not (whole or ours(target)):
        return F.cross_entropy(input, target, weight, **options)
    if readable(input):
        value = F.cross_entropy(input, target, weight, **options)
        if regular(value) and not (whole and _reads_ignored(input, target, ignore_index)):
            return value
    input, weight = recast(input, weight)
    dim = _class_dim(input)
    word = named(size_average, reduce, reduction)
    wide = widened(input)
    if whole and target.dim() == input.dim() - 1:
        kept = target != ignore_index
        rows = log_softmax(torch.where(kept.unsqueeze(dim), wide, 0.0), dim)
        loss, total = _of_classes(rows, target, weight, kept, label_smoothing)
    else:
        loss = _of_probabilities(log_softmax(wide, dim), target, weight, label_smoothing)
        total = torch.full((), loss.numel(), dtype=loss.dtype, device=loss.device)
    return reduced(loss, word, input.dtype, total)


def _class_dim(x: Tensor) -> int:
    return 0 if x.dim() == 1 else 1


def _reads_ignored(x: Tensor, target: Tensor, ignore_index: int) -> bool:
    """torch's gradient of an ignored row is NaN if that holds what is not finite."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return False
    ignored = target == ignore_index
    return bool(ignored.any()) and not finite(x.detach().movedim(_class_dim(x), -1)[ignored])


def _of_classes(
    rows: Tensor, target: Tensor, weight: Tensor | None, kept: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The loss of each element, and the sum of the weights."""
    dim = _class_dim(rows)
    index = torch.where(kept, target, 0).long()
    share = kept.to(rows.dtype)
    if weight is not None:
        share = share * weight.to(rows.dtype)[index]
    at = rows.gather(dim, index.unsqueeze(dim)).squeeze(dim)
    loss = -_product(share, at)
    if smoothing > 0:
        every = torch.ones_like(rows) if weight is None else _along(weight, rows, dim)
        even = -_product(every, rows).sum(dim) / sizes(rows)[dim]
        loss = (1 - smoothing) * loss + smoothing * torch.where(kept, even, 0.0)
    return loss, share.sum()


def _along(weight: Tensor, rows: Tensor, dim: int) -> Tensor:
    shape = [-1 if i == dim else 1 for i in range(rows.dim())]
    return weight.to(rows.dtype).view(shape).expand_as(rows)


def _product(share: Tensor, value: Tensor) -> Tensor:
    """share * value, of which 0 · ±inf is 0."""
    none = (share.detach() == 0) & value.detach().isinf()
    return share * torch.where(none, 0.0, value)


def _of_probabilities(
    rows: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> Tensor:
    dim = _class_dim(rows)
    target = target.to(rows.dtype)
    if smoothing > 0:
        target = target * (1 - smoothing) + smoothing / sizes(rows)[dim]
    if weight is not None:
        target = target * _along(weight, rows, dim)
    return -_product(target, rows).sum(dim)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""-w x at the target class, and 0 for a mean over no target.

    .. math:: f(x, t) = -w_t x_t

    torch gives NaN for the mean where all targets are ignored (or their weights are 0). Here that
    is 0, connected to the graph with gradient 0, and a weight of 0 times -inf is 0. A target at
    -inf costs +inf, as in torch.

    Args:
        input, target, weight, ignore_index, reduction: as in torch.
        size_average, reduce: deprecated, as in torch.

    Returns:
        As torch.nn.functional.nll_loss, with its bits wherever that is finite.

    Raises:
        What torch.nn.functional.nll_loss does.

    >>> nll_loss(torch.zeros(2, 3), torch.tensor([-100, -100]))
    tensor(0.)

    Source: torch.nn.functional.nll_loss.
    """
    if not ours(input):
        return F.nll_loss(input, target, weight, size_average, ignore_index, reduce, reduction)
    if readable(input):
        value = F.nll_loss(input, target, weight, size_average, ignore_index, reduce, reduction)
        if regular(value):
            return value
    input, weight = recast(input, weight)
    kept = target != ignore_index
    loss, total = _of_classes(widened(input), target, weight, kept)
    return reduced(loss, named(size_average, reduce, reduction), input.dtype, total)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    r"""The negative logarithm of the probability of all alignments, 0 where there is none.

    .. math:: f(r, t) = -\log \sum_{a \in A(t)} \exp \sum_i r_{i, a_i}

    torch gives inf for targets that do not fit into their input, and a NaN gradient for a log
    probability of -inf. Here the first is 0 with gradient 0, as with ``zero_infinity=True``, and
    the gradient to a log probability of -inf is 0.

    Args:
        log_probs, targets, input_lengths, target_lengths, blank, reduction: as in torch.
        zero_infinity: makes no difference.

    Returns:
        As torch.nn.functional.ctc_loss, with its bits wherever that is regular.

    Raises:
        What torch.nn.functional.ctc_loss does.

    >>> r = torch.zeros(1, 1, 3).log_softmax(-1)
    >>> ctc_loss(r, torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([2]))
    tensor(0.)

    Source: torch.nn.functional.ctc_loss.
    """
    rest = (targets, input_lengths, target_lengths, blank)
    if not ours(log_probs):
        return F.ctc_loss(log_probs, *rest, reduction, zero_infinity)
    if readable(log_probs):
        value = F.ctc_loss(log_probs, *rest, reduction, zero_infinity)
        if regular(value) and finite(log_probs):
            return value
    (log_probs,) = recast(log_probs)
    reachable = torch.where(log_probs.detach() == -math.inf, _FAR, log_probs)
    loss = F.ctc_loss(reachable, *rest, "none", zero_infinity=True)
    loss = torch.where(loss.detach() > -_FAR / 2, 0.0, loss)
    if reduction != "mean":
        return reduced(loss, reduction, loss.dtype)
    lengths = torch.as_tensor(target_lengths, device=loss.device).to(loss.dtype)
    return reduced(loss / lengths.clamp_min(1.0).reshape(loss.shape), "mean", loss.dtype)
