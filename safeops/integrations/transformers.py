"""Guard as a callback of the Trainer of transformers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..guard import Guard
from . import Losses, check_options, counts, make_guard

__all__ = ["GuardCallback"]


def _callback_class() -> Any:
    if all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
        return importlib.import_module("transformers").TrainerCallback
    raise ImportError(
        "expected the Trainer of transformers, but transformers or accelerate is not installed: "
        "pip install transformers accelerate"
    )


class GuardCallback(_callback_class()):  # type: ignore[misc]
    """Trainer(callbacks=[GuardCallback(max_norm=1.0)]): every optimizer step goes through a Guard.

    Set max_grad_norm=0 in the TrainingArguments and the guard clips. Else the Trainer clips first,
    and one NaN makes every gradient NaN: the step is skipped all the same, but which parameter
    was bad is lost. A bad step changes nothing: gradients are None, the statistics of BatchNorm are
    put back, the scheduler stands still. state.global_step goes on, since it counts batches.

    The loss is the one that the model returns, averaged over the batches that were accumulated. A
    Trainer that computes its loss outside of the model (compute_loss_func, label_smoothing_factor)
    keeps it to itself; then the guard judges the gradients alone.

    Args:
        options: keyword arguments of Guard, all but scheduler, scaler and accumulate, which the
            Trainer has.

    Attributes:
        guard: the Guard of the latest training, made when it starts; None before.

    Raises:
        TypeError: an option that Guard does not know; at the start of the training an optimizer
            that is not accelerate's, such as DeepSpeed's, whose steps cannot be withheld.
        TrainingDiverged: from train, see Guard.

    How often something happened is logged as guard/skipped and the like, in state.log_history and
    on the console; a step at which it did is logged whatever logging_steps says.
    """

    def __init__(self, **options: Any):
        check_options(options)
        self.options = options
        self.guard: Guard | None = None
        self._hook: Any = None  # on the model
        self._losses, self._summed = Losses(options), False
        self._verdict, self._logged = "ok", 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Weights, optimizer and scheduler are those of the checkpoint by now."""
        self._release()
        self._losses, self._verdict, self._logged = Losses(self.options), "ok", 0
        model, optimizer, scheduler = (kwargs[k] for k in ("model", "optimizer", "lr_scheduler"))
        options = {"process_group": _ranks(), **self.options}
        self.guard = make_guard(options, model, _inner(optimizer), optimizer.scaler, [scheduler])
        self._hook = model.register_forward_hook(self._keep, with_kwargs=True)

    def _keep(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Of a forward that is part of a step. Losses that are normalised by a count of items are
        parts of a sum, not a mean each."""
        if model.training and torch.is_grad_enabled():
            self._losses.add_batch(kwargs)
            self._summed = kwargs.get("num_items_in_batch") is not None
            loss = output.get("loss") if isinstance(output, Mapping) else None
            if isinstance(loss, Tensor):
                self._losses.add(loss)

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.guard is not None
        losses, batch = self._losses.take()
        loss = sum(losses) / (1 if self._summed else len(losses)) if losses else None
        self._verdict = self._guarded(self.guard.before_step, loss, batch=batch)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What the Trainer asks before it steps the scheduler."""
        if self._verdict != "ok":
            kwargs["optimizer"]._is_overflow = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The scheduler has stepped by now, so that a snapshot is of a whole step."""
        assert self.guard is not None
        kwargs["optimizer"]._is_overflow = False
        if self._verdict == "ok":
            self._guarded(self.guard.after_step)
        if len(self.guard.events) > self._logged:
            self._logged, control.should_log = len(self.guard.events), True

    def _guarded(self, call: Any, *args: Any, **kwargs: Any) -> str:
        try:
            return call(*args, **kwargs).verdict
        except BaseException:
            self._release()  # the Trainer does not tell when it fails
            raise

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.guard is not None and self.guard.events and logs is not None:
            logs.update(counts(self.guard))
            state.log_history[-1].update(counts(self.guard))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._release()


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """Inside of accelerate's wrapper."""
    if not hasattr(optimizer, "_is_overflow"):
        raise TypeError(
            "expected an optimizer of accelerate, whose skipped steps the Trainer asks for, got "
            f"{type(optimizer).__name__}: put a safeops.Guard in a training loop of your own"
        )
    return optimizer.optimizer


def _ranks() -> Any:
    """The model that a callback is given is not the one inside of DDP, which would tell."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
