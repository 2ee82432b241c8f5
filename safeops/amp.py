"""Mixed precision: a GradScaler that reads the gradients once and can tell when to give up."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import _clip, _gradients
from ._gradients import Gradients, NonFiniteGradientError, NonFiniteGradientWarning
from ._reports import ClipReport, FiniteReport
from .gradients import check_finite
from .optim import as_grad_scale, grad_scale_of, parameters_of, refuse_closure

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    r"""torch.amp.GradScaler with unscale, check, norm and clip in one read of the gradients.

    A drop-in: same methods, same state_dict. A step whose gradients hold NaN or ±inf is skipped:
    weights, moments and step counts stay as they are, every ``.grad`` becomes None, and ``update``
    lowers the scale by backoff_factor, as torch does. But not without end:

    - the scale does not fall below min_scale;
    - after ``patience`` bad iterations in a row ``update`` raises NonFiniteGradientError, which
      names the parameters and says what was seen.

    With max_norm the gradients are clipped while they are unscaled, by the norm of the unscaled
    ones; with a fused optimizer factor and scale go into its step. ``unscale_`` is needed only to
    look at the gradients before the step; bad ones stay there, scaled, until the step.

    Args:
        device, init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.
            With enabled=False and a max_norm the step still clips, skips and counts what is bad.
        max_norm: the largest norm of the unscaled gradients of an optimizer; None clips nothing.
        norm_type, process_group: as in clip_grad_norm_.
        min_scale: the floor of the scale.
        patience: how many bad iterations in a row are too many; None is never.

    Attributes:
        total_norm: of the gradients of the last step, unscaled, before the clip.
        verdict: of the last iteration, known after update(): "ok"; "overflow": the scale may have
            been too high; "nan": it was not, since the loss itself is not finite or the scale is
            at its floor, and a warning names the parameters. On several ranks the loss is that of
            the rank; scale and skips are alike on all.
        bad_in_a_row: how many iterations in a row were bad until now.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.AdamW([("weight", weight)], lr=0.1)
    >>> scaler = GradScaler("cpu", max_norm=1.0)
    >>> loss = (weight * torch.tensor([3.0, 4.0])).sum()
    >>> scaler.scale(loss).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> scaler.total_norm, weight.grad, scaler.verdict
    (tensor(5.), tensor([0.6000, 0.8000]), 'ok')

    Source: Micikevicius et al., 2018, "Mixed precision training", section 3.2.
    """

    total_norm: Tensor | None = None
    verdict: str = "ok"
    bad_in_a_row: int = 0

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        max_norm: float | None = None,
        norm_type: float | str = 2.0,
        min_scale: float = 1.0,
        patience: int | None = 20,
        process_group: Any = None,
    ):
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self.max_norm = math.inf if max_norm is None else _gradients.limit("max_norm", max_norm)
        self.norm_type = _gradients.order(norm_type)
        self.min_scale = _gradients.limit("min_scale", min_scale)
        self.patience = _patience(patience)
        self.process_group = process_group
        self._losses: list[FiniteReport] = []  # of this iteration, unscaled
        self._bad: dict[int, ClipReport] = {}  # of this iteration, by the optimizer's id

    def scale(self, outputs: Any) -> Any:
        """outputs · scale, as torch does; and a note on whether they were finite before."""
        if isinstance(outputs, Iterable) and not isinstance(outputs, (Tensor, list, tuple)):
            outputs = tuple(outputs)
        if self._enabled or self.max_norm < math.inf:
            self._losses += [check_finite(tensor) for tensor in _tensors(outputs)]
        return super().scale(outputs)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """The optimizer's step on unscaled and clipped gradients; none if they are bad."""
        if not self._enabled and self.max_norm < math.inf:
            refuse_closure(args, kwargs)
            gradients = self._read(optimizer)
            _clip.apply(gradients, self._decide(optimizer, gradients, 1.0))
        self._release_bad(optimizer)
        result = super().step(optimizer, *args, **kwargs)
        self._release_bad(optimizer)
        return result

    def _release_bad(self, optimizer: torch.optim.Optimizer) -> None:
        """No step and no accumulation meets gradients that are bad."""
        if id(optimizer) in self._bad:
            for parameter in parameters_of(optimizer).tensors:
                parameter.grad = None

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """The scale for the next iteration.

        Raises:
            NonFiniteGradientError: ``patience`` iterations in a row were bad.
        """
        bad, finite_loss = list(self._bad.values()), all(self._losses)
        before = self.get_scale() if bad else 0.0
        super().update(new_scale)
        if bad and new_scale is None and self._enabled and self._scale is not None:
            self._scale.clamp_(min=min(before, self.min_scale))
        self._bad, self._losses = {}, []
        if bad:
            self._back_off(before, bad[-1], finite_loss)
        else:
            self.verdict, self.bad_in_a_row = "ok", 0

    def discard(self) -> None:
        """Forget this iteration, in place of ``update``: neither scale nor counts move."""
        getattr(self, "_per_optimizer_states", {}).clear()  # one that is not enabled has none
        self._bad, self._losses = {}, []

    def _back_off(self, before: float, bad: ClipReport, finite_loss: bool) -> None:
        high = self._enabled and finite_loss and before > self.min_scale
        self.verdict = "overflow" if high else "nan"
        self.bad_in_a_row += 1
        story = self._story(before, bad, finite_loss)
        if self.bad_in_a_row >= self.patience:
            raise NonFiniteGradientError(story, bad)
        if not high:
            warnings.warn(story, NonFiniteGradientWarning, stacklevel=_gradients.user_level())

    def _story(self, before: float, bad: ClipReport, finite_loss: bool) -> str:
        remedy = "The scale is not the cause: look at the data, the loss and these parameters"
        if self.verdict == "overflow":
            remedy = f"The scale may still be too high; it is {self.get_scale():g} now"
        at = f" at scale {before:g}" if self._enabled else ""
        return (
            f"{self.bad_in_a_row} steps skipped in a row, the last one{at}: gradients are not "
            f"finite: {_clip.listing(bad)}; the loss was {'' if finite_loss else 'not '}finite. "
            f"{remedy}"
        )

    def _read(self, optimizer: torch.optim.Optimizer) -> Gradients:
        return Gradients(parameters_of(optimizer), self.norm_type, self.process_group)

    def _decide(self, optimizer: Any, gradients: Gradients, by: float) -> _clip.Outcome:
        """What the step does, by being 1 / scale."""
        outcome = _clip.decide(gradients, self.max_norm, "skip", by)
        self.total_norm = outcome.total_norm
        if gradients.bad:
            self._bad[id(optimizer)] = _clip.report_of(gradients, outcome, self.max_norm)
        return outcome

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        """torch's hook for unscale_() and for the step of an optimizer that is not fused."""
        gradients = self._read(optimizer)
        if not allow_fp16:
            _check_no_float16(gradients)
        outcome = self._decide(optimizer, gradients, inv_scale.item())
        if not gradients.bad and outcome.factor != 1.0:
            gradients.scale(*outcome.parts)
        return _found(gradients, found_inf.device)

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """torch's hook for the step of a fused one, which divides by scale · grad_scale."""
        scale, _ = self._check_scale_growth_tracker("step")
        gradients, by = self._read(optimizer), 1 / (scale.item() * grad_scale_of(optimizer))
        outcome = self._decide(optimizer, gradients, by)
        self._release_bad(optimizer)
        if outcome.verdict == "clipped":
            self._fold(optimizer, gradients, outcome, by)
        found: dict[Any, Any] = _found(gradients, scale.device)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        return found

    def _fold(
        self, optimizer: Any, gradients: Gradients, outcome: _clip.Outcome, by: float
    ) -> None:
        divisor = as_grad_scale(gradients, outcome.parts)
        if divisor is None:
            gradients.scale(outcome.parts[0] / by, outcome.parts[1])
        else:
            optimizer.grad_scale = divisor / self.get_scale()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_losses": [], "_bad": {}}


def _found(gradients: Gradients, device: torch.device) -> dict[torch.device, Tensor]:
    """As torch's step wants to know it: nothing, which it complains about, without gradients."""
    if not gradients.total.numel:
        return {}
    return {device: torch.tensor(float(gradients.bad), device=device)}


def _patience(value: int | None) -> float:
    if value is None:
        return math.inf
    if (steps := _gradients.limit("patience", value)) < 1 or steps % 1:
        raise ValueError(f"expected patience to be a positive integer or None, got {value!r}")
    return steps


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, (list, tuple)):
        for each in outputs:
            yield from _tensors(each)


def _check_no_float16(gradients: Gradients) -> None:
    """torch's rule: they would overflow again as soon as they are accumulated."""
    for place, tensor in gradients.lots.tensors().items():
        if tensor.dtype is torch.float16:
            raise ValueError(
                f"expected float32 or bfloat16 gradients to unscale, got float16 in "
                f"{gradients.names()[place]}: keep the parameters in float32 and use autocast"
            )
