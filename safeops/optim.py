"""Clipping inside the optimizer's step."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from . import _clip, _gradients
from ._gradients import Gradients, Listed
from ._statistics import scaled

_FOLDED = (1e-37, 1e37)  # what a float32 grad_scale can hold
_CLIPPED: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # those with a clipper


class GradNormClipper:
    r"""Clips g · min(1, max_norm / ‖g‖) inside every ``optimizer.step()``, by step hooks.

    The gradients are read once, before the step. An optimizer that was made with ``fused=True``
    (torch's Adam, AdamW, SGD, Adagrad) then divides by 1 / factor on its own way through them, so
    that the clip itself writes nothing; for others they are scaled in place, if need be. Learning
    rate schedulers, state dicts and torch's GradScaler see the optimizer as it was: under a scaler
    the norm is that of the unscaled gradients. A copy of the optimizer has no clipper.

    Args:
        optimizer: a torch optimizer; all its parameters share one norm. Made with
            ``model.named_parameters()`` it has names for messages.
        max_norm, norm_type, nonfinite, process_group: as in clip_grad_norm_.

    Attributes:
        total_norm, factor, verdict: those of the last step, as in ClipReport.
        skipped: how many steps were skipped so far.

    Raises:
        TypeError: what is no optimizer. RuntimeError: an optimizer that has a clipper already; at
            a step with a closure, whose gradients do not exist when the step begins.

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
        if optimizer in _CLIPPED:
            raise RuntimeError("the optimizer has a GradNormClipper: call its remove() first")
        self.max_norm = _gradients.limit("max_norm", max_norm)
        self.norm_type = _gradients.order(norm_type)
        self.nonfinite = _gradients.policy(nonfinite)
        self.process_group = process_group
        self._optimizer = optimizer
        self._saved: dict[str, Any] | None = None  # the optimizer's own while ours is in its place
        self._handles = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._restore),
        )
        _CLIPPED.add(optimizer)

    def remove(self) -> None:
        """The optimizer is as it was before."""
        for handle in self._handles:
            handle.remove()
        _CLIPPED.discard(self._optimizer)
        self._restore()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        refuse_closure(args[1:], kwargs)
        self._restore()  # after a step that raised
        try:
            self._prepare(optimizer)
        except BaseException:
            self._abandon()
            raise

    def _prepare(self, optimizer: Any) -> None:
        gradients = Gradients(parameters_of(optimizer), self.norm_type, self.process_group)
        fused = supports_scale(optimizer)
        by = 1 / grad_scale_of(optimizer) if fused else 1.0
        outcome = _clip.decide(gradients, self.max_norm, self.nonfinite, by)
        self._note(outcome, by)
        if not (fused and outcome.verdict == "clipped" and self._fold(gradients, outcome)):
            self._write(gradients, outcome, fused)

    def _abandon(self) -> None:
        """torch's scaler leaves its numbers on an optimizer whose step raises, for the next one."""
        if "found_inf" in vars(self._optimizer):
            self._saved = None
            for name in ("grad_scale", "found_inf"):
                vars(self._optimizer).pop(name, None)

    def _note(self, outcome: _clip.Outcome, by: float) -> None:
        self.verdict, self.total_norm = outcome.verdict, outcome.total_norm
        self.factor = 1.0 if outcome.verdict in ("skipped", "kept") else outcome.factor / by
        self.skipped += outcome.verdict == "skipped"

    def _fold(self, gradients: Gradients, outcome: _clip.Outcome) -> bool:
        divisor = as_grad_scale(gradients, outcome.parts)
        if divisor is None:
            return False
        self._put(torch.tensor(divisor, dtype=torch.float32, device=gradients.device))
        return True

    def _write(self, gradients: Gradients, outcome: _clip.Outcome, fused: bool) -> None:
        """What is not folded. A step that a scaler has found bad must not meet new numbers."""
        _clip.carry_out(gradients, outcome, self.max_norm, self.nonfinite)
        if fused and outcome.verdict in _clip.WRITTEN:
            self._put(None)
            if getattr(self._optimizer, "found_inf", None):
                gradients.release()

    def _put(self, scale: Tensor | None) -> None:
        own = vars(self._optimizer)
        self._saved = {key: value for key, value in own.items() if key == "grad_scale"}
        own["grad_scale"] = scale

    def _restore(self, *_: Any) -> None:
        """The optimizer's own grad_scale is back, or none."""
        if self._saved is not None:
            del vars(self._optimizer)["grad_scale"]
            vars(self._optimizer).update(self._saved)
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


def refuse_closure(args: Any, kwargs: Any) -> None:
    if any(value is not None for value in (*args[:1], kwargs.get("closure"))):
        raise RuntimeError(
            "expected step() without a closure: its gradients do not exist yet when the step "
            "begins. Call safeops.clip_grad_norm_ at the end of the closure instead"
        )


def supports_scale(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step divides by grad_scale, as torch's fused ones do; a checkpoint may have
    brought groups that are not."""
    fused = all(group.get("fused", True) for group in optimizer.param_groups)
    return fused and getattr(optimizer, "_step_supports_amp_scaling", False)


def grad_scale_of(optimizer: torch.optim.Optimizer) -> float:
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def as_grad_scale(gradients: Gradients, parts: tuple[float, float]) -> float | None:
    """1 / factor, for a fused step; None where float32, which it takes, does not do."""
    value, shift = parts
    divisor = scaled(1 / value, -shift) if value else math.inf
    fits = _FOLDED[0] < divisor < _FOLDED[1] and not gradients.lots.any_double()
    return divisor if fits else None
