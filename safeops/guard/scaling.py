"""What a GradScaler has to do with a step, torch's and ours; or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Scaling:
    """scaler: None, or a torch.amp.GradScaler; one that is not enabled does nothing. Whoever drives
    it calls its step and update: a trainer, or we."""

    drives = True

    def __init__(self, scaler: Any, optimizers: Sequence[torch.optim.Optimizer]):
        self._scaler, self._optimizers = scaler, optimizers

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self) -> None:
        """Unless the user has."""
        if self._scaler is None or not self._scaler.is_enabled():
            return
        for optimizer in self._with_gradients():
            stage = self._scaler._per_optimizer_states[id(optimizer)]["stage"]
            if stage.name == "READY":
                self._scaler.unscale_(optimizer)

    def _with_gradients(self) -> list[torch.optim.Optimizer]:
        """A scaler refuses the others."""
        return [
            one
            for one in self._optimizers
            if any(p.grad is not None for group in one.param_groups for p in group["params"])
        ]

    def may_overflow(self) -> bool:
        """Whether there is a scale that could be lowered."""
        if self._scaler is None or not self._scaler.is_enabled():
            return False
        return self._scaler.get_scale() > getattr(self._scaler, "min_scale", 1.0)

    def skip(self) -> None:
        """The scaler's own way: no optimizer steps, not even one without overflow, and the scale is
        lowered."""
        for state in self._scaler._per_optimizer_states.values():
            for found in state["found_inf_per_device"].values():
                found.fill_(1.0)
        self.step()

    def step(self) -> None:
        """Of all optimizers."""
        if self._scaler is None:
            for optimizer in self._optimizers:
                optimizer.step()
            return
        for optimizer in self._with_gradients():
            self._scaler.step(optimizer)
        if self._with_gradients() or self._scaler.is_enabled():
            self._scaler.update()

    def discard(self) -> None:
        """This iteration never was: neither scale nor counts move."""
        if self._scaler is not None and self.drives:
            getattr(self._scaler, "_per_optimizer_states", {}).clear()
            if hasattr(self._scaler, "discard"):
                self._scaler.discard()
