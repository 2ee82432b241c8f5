"""Mixed precision: a GradScaler that reads the gradients once and can tell when to give up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import _clip, _gradients
from ._gradients import Gradients, NonFiniteGradientError
from ._reports import ClipReport, FiniteReport
from .gradients import check_finite
from .optim import as_grad_scale, grad_scale_of, parameters_of, refuse_closure

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    r"""torch.amp.GradScaler with unscale, check, norm and clip in one read of the gradients.

    A drop-in: same methods, same state_dict. A step whose gradients hold NaN or ±inf is skipped:
    every ``.grad`` becomes None, weights, moments and step counts stay as they are, and ``update``
    lowers the scale by backoff_factor, as torch does. But not without end:

    - the scale does not fall below min_scale;
    - if ``patience`` steps in a row are bad, the scale was not the cause, and ``update`` raises
      NonFiniteGradientError, which names the parameters and says what was seen.

    With max_norm the gradients are clipped while they are unscaled, by the norm of the unscaled
    ones; with a fused optimizer factor and scale go into its step, and nothing is written.

    Args:
        device, init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.
            With enabled=False and a max_norm the step still clips, and skips what is bad.
        max_norm: the largest norm of the unscaled gradients of an optimizer; None clips nothing.
        norm_type, process_group: as in clip_grad_norm_.
        min_scale: the floor of the scale.
        patience: how many bad steps in a row are too many; None is never.

    Attributes:
        total_norm: of the gradients of the last step, unscaled, before the clip.
        verdict: of the last step: "ok"; "overflow": the scale may have been too high; "nan": it
            was not, since the loss itself is not finite or the scale is at its floor already.
        skipped: how many steps in a row were bad until now.

    Source: Micikevicius et al., 2018, "Mixed precision training", section 3.2.
    """

    total_norm: Tensor | None = None
    verdict: str = "ok"
    skipped: int = 0

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
        self.patience = math.inf if patience is None else _gradients.limit("patience", patience)
        self.process_group = process_group
        self._losses: list[FiniteReport] = []  # of this iteration, unscaled
        self._bad: ClipReport | None = None  # the gradients of this iteration, if they are bad

    def scale(self, outputs: Any) -> Any:
        """outputs · scale, as torch does; and a note on whether they were finite before."""
        if self._enabled:
            self._losses += [check_finite(tensor) for tensor in _tensors(outputs)]
        return super().scale(outputs)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """The optimizer's step on unscaled and clipped gradients; none if they are bad."""
        if not self._enabled and self.max_norm < math.inf:
            refuse_closure(args, kwargs)
            outcome, _ = _clip.clip(self._read(optimizer), self.max_norm, "skip")
            self.total_norm = outcome.total_norm
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """The scale for the next iteration.

        Raises:
            NonFiniteGradientError: ``patience`` iterations in a row were bad.
        """
        if not self._enabled:
            return
        bad, losses = self._bad, self._losses
        self._bad, self._losses = None, []
        before = self.get_scale() if bad is not None else 0.0
        super().update(new_scale)
        if bad is None:
            self.verdict, self.skipped = "ok", 0
        else:
            self._back_off(before, bad, all(losses))

    def _back_off(self, before: float, bad: ClipReport, finite_loss: bool) -> None:
        assert self._scale is not None
        self._scale.clamp_(min=min(before, self.min_scale))
        self.verdict = "overflow" if finite_loss and before > self.min_scale else "nan"
        self.skipped += 1
        if self.skipped >= self.patience:
            loss = "finite" if finite_loss else "not finite either"
            raise NonFiniteGradientError(
                f"{self.skipped} steps in a row were skipped, the last one at scale {before:g}: "
                f"gradients are not finite: {_clip.listing(bad)}; the loss was {loss}. The scale "
                "is not the cause; look at the data, the learning rate and these parameters",
                bad,
            )

    def _read(self, optimizer: torch.optim.Optimizer) -> Gradients:
        return Gradients(parameters_of(optimizer), self.norm_type, self.process_group)

    def _decide(self, gradients: Gradients, by: float) -> _clip.Outcome:
        """What the step does, by being 1 / scale; bad gradients go at once."""
        outcome = _clip.decide(gradients, self.max_norm, "skip", by)
        self.total_norm = outcome.total_norm
        if gradients.bad:
            self._bad = _clip.report_of(gradients, outcome, self.max_norm)
            gradients.release()
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
        outcome = self._decide(gradients, inv_scale.item())
        if not gradients.bad and outcome.factor != 1.0:
            gradients.scale(*outcome.parts)
        return {found_inf.device: found_inf.fill_(gradients.bad)}

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """torch's hook for the step of a fused one, which divides by scale · grad_scale."""
        scale, _ = self._check_scale_growth_tracker("step")
        gradients, by = self._read(optimizer), 1 / (scale.item() * grad_scale_of(optimizer))
        outcome = self._decide(gradients, by)
        if outcome.verdict == "clipped":
            self._fold(optimizer, gradients, outcome, by)
        found: dict[Any, Any] = {scale.device: torch.zeros_like(scale).fill_(gradients.bad)}
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
        return super().__getstate__() | {"_losses": [], "_bad": None}


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
