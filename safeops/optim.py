"""Clipping inside the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _clip, _gradients
from ._gradients import Gradients, Listed

FOLDED = (1e-30, 1e30)  # factors that a float32 grad_scale can hold


class GradNormClipper:
    r"""Clips g · min(1, max_norm / ‖g‖) inside every ``optimizer.step()``, by step hooks.

    The gradients are read once, before the step. An optimizer that was made with ``fused=True``
    (torch's Adam, AdamW, SGD, Adagrad) then divides by 1 / factor on its own way through them, so
    that the clip itself writes nothing; for others they are scaled in place, if need be. Learning
    rate schedulers, state dicts and torch's GradScaler see the optimizer as it was: under a scaler
    the norm is that of the unscaled gradients.

    Args:
        optimizer: a torch optimizer; all its parameters share one norm.
        max_norm, norm_type, nonfinite, process_group: as in clip_grad_norm_.

    Attributes:
        total_norm, factor, verdict: those of the last step, as in ClipReport.
        skipped: how many steps were skipped.

    Raises:
        TypeError: what is no optimizer. RuntimeError at a step with a closure, whose gradients
            do not exist when the step begins.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    >>> clipper = GradNormClipper(optimizer, max_norm=1.0)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> optimizer.step()
    >>> weight.detach(), clipper.total_norm, clipper.verdict
    (tensor([-0.6000, -0.8000]), tensor(5.), 'clipped')
    """

    total_norm: Tensor | None = None
    factor: float = 1.0
    verdict: str = "ok"
    skipped: int = 0

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        max_norm: float,
        norm_type: float | str = 2.0,
        *,
        nonfinite: str = "skip",
        process_group: Any = None,
    ):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"expected a torch optimizer, got {type(optimizer).__name__}")
        self.max_norm = _gradients.limit("max_norm", max_norm)
        self.norm_type = _gradients.order(norm_type)
        self.nonfinite = _gradients.policy(nonfinite)
        self.process_group = process_group
        self._saved: dict[str, Any] | None = None  # the optimizer's own while ours is in its place
        self._handles = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def remove(self) -> None:
        """The optimizer is as it was before."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if any(value is not None for value in (*args[1:2], kwargs.get("closure"))):
            raise RuntimeError(
                "expected step() without a closure: its gradients do not exist yet when the step "
                "begins. Call safeops.clip_grad_norm_ at the end of the closure instead"
            )
        self._after(optimizer)  # a step that raised has left ours in its place
        gradients = Gradients(parameters_of(optimizer), self.norm_type, self.process_group)
        if supports_scale(optimizer):
            outcome = self._fold(optimizer, gradients)
        else:
            outcome, _ = _clip.clip(gradients, self.max_norm, self.nonfinite)
        self.verdict, self.factor = outcome.verdict, outcome.factor
        self.total_norm = outcome.total_norm
        self.skipped += outcome.verdict == "skipped"

    def _fold(self, optimizer: Any, gradients: Gradients) -> _clip.Outcome:
        """The factor goes where the fused step divides by it, unless something must be written."""
        scale = getattr(optimizer, "grad_scale", None)
        by = 1.0 if scale is None else 1 / float(scale)
        outcome = _clip.decide(gradients, self.max_norm, self.nonfinite, by)
        if outcome.verdict == "clipped" and FOLDED[0] < outcome.factor < FOLDED[1]:
            device = gradients.device if scale is None else scale.device
            self._put(optimizer, torch.tensor(1 / outcome.factor, device=device))
            return outcome
        _clip.clip(gradients, self.max_norm, self.nonfinite, by=by)
        if outcome.verdict in _clip.WRITTEN:
            self._put(optimizer, None)
        return outcome

    def _put(self, optimizer: Any, scale: Tensor | None) -> None:
        self._saved = {key: value for key, value in vars(optimizer).items() if key == "grad_scale"}
        optimizer.grad_scale = scale

    def _after(self, optimizer: Any, *_: Any) -> None:
        """The optimizer's own grad_scale is back, or none."""
        if self._saved is not None:
            del optimizer.grad_scale
            vars(optimizer).update(self._saved)
            self._saved = None


def parameters_of(optimizer: torch.optim.Optimizer) -> Listed:
    """All of them; by the names with which the optimizer was made, if it knows them."""
    groups = optimizer.param_groups
    return Listed(
        [parameter for group in groups for parameter in group["params"]],
        lambda: [name for i, group in enumerate(groups) for name in _names(i, group)],
    )


def _names(index: int, group: dict[str, Any]) -> list[str]:
    if "param_names" in group:
        return group["param_names"]
    return [f"param_groups[{index}][{i}]" for i in range(len(group["params"]))]


def supports_scale(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step divides by grad_scale, as torch's fused ones do."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)
