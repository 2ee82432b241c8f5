"""Guard as a callback of Lightning's Trainer."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from ..guard import Guard, StepResult
from . import Losses, check_options, counts, make_guard

__all__ = ["GuardCallback"]

_MODULES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _callback_class() -> Any:
    """Of the first package that is installed; the Trainers of both take it."""
    for package, module in _MODULES.items():
        if importlib.util.find_spec(package):
            return importlib.import_module(module).Callback
    raise ImportError(
        "expected Lightning, but neither lightning nor pytorch_lightning is installed: "
        "pip install lightning"
    )


class GuardCallback(_callback_class()):  # type: ignore[misc]
    """Trainer(callbacks=[GuardCallback(max_norm=1.0)]): every optimizer step goes through a Guard.

    The guard sees the gradients before the optimizer's step, unscaled where there is a scaler, and
    the mean loss of the batches that were accumulated. A bad step changes nothing: gradients are
    None, the statistics of BatchNorm are put back, schedulers with interval "step" stand still.
    Those with interval "epoch" go on, as the epochs do; so does trainer.global_step, which counts
    batches. The Trainer's gradient_clip_val clips what the guard has clipped: use one of them.

    Args:
        options: keyword arguments of Guard, all but scheduler, scaler and accumulate, which the
            Trainer has.

    Attributes:
        guard: the Guard of the latest fit, made when the training starts; None before.

    Raises:
        TypeError: an option that Guard does not know.
        ValueError: at the start of fit: manual optimization, where training_step makes the steps
            and can put a Guard of its own around them.
        TrainingDiverged: from fit, see Guard.

    How often something happened goes to the Trainer's loggers as guard/skipped and the like.
    Checkpoints of the Trainer hold the counts of the guard, so that a resumed fit goes on.
    """

    def __init__(self, **options: Any):
        check_options(options)
        self.options = options
        self.guard: Guard | None = None
        self._state: dict[str, Any] = {}  # of a checkpoint, until there is a guard to take it
        self._wrapped = ExitStack()  # hooks of the module
        self._losses = Losses(options)
        self._step: StepResult | None = None  # of this batch, if it has ended one
        self._logged = 0  # events

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization:
            raise ValueError(
                "expected automatic optimization, got automatic_optimization=False in "
                f"{type(pl_module).__name__}: put a safeops.Guard around the steps in training_step"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Weights, optimizer and schedulers are those of the checkpoint by now."""
        self._wrapped.close()
        self._losses, self._step, self._logged = Losses(self.options), None, 0
        configs = trainer.lr_scheduler_configs
        by_step = [one.scheduler for one in configs if one.interval == "step"]
        rest = [one.scheduler for one in configs if one.interval != "step"]
        parts = trainer.model, trainer.optimizers[0], _scaler(trainer)
        self.guard = make_guard(self.options, *parts, by_step, *rest)
        if self._state:
            self.guard.load_state_dict(self._state)
            self._state = {}
        self._wrap(pl_module, "lr_scheduler_step", lambda scheduler: scheduler in by_step)
        self._wrap(pl_module, "configure_gradient_clipping", lambda optimizer: True)

    def _wrap(self, module: Any, name: str, concerned: Callable[[Any], bool]) -> None:
        """Not called in a bad step. Clipping by value fails where all gradients are None."""
        own, hook = vars(module).get(name), getattr(module, name)

        def wrapper(first: Any, *args: Any, **kwargs: Any) -> None:
            if self._step is None or self._step.verdict == "ok" or not concerned(first):
                hook(first, *args, **kwargs)

        undo = (delattr, module, name) if own is None else (setattr, module, name, own)
        self._wrapped.callback(*undo)
        setattr(module, name, wrapper)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._log(trainer)
        self._wrapped.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._wrapped.close()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *args: Any) -> None:
        self._step = None
        self._losses.add_batch(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Of the mean over the batches this is one part, scaled."""
        scale = _scaler(trainer).get_scale() if _scaler(trainer) else 1.0
        self._losses.add(loss * (trainer.accumulate_grad_batches / scale))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Of a training_step that returned None there is nothing to judge."""
        losses, batch = self._losses.take()
        if self.guard is not None and losses:
            self._step = self.guard.before_step(sum(losses) / len(losses), batch=batch)

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """The schedulers have stepped by now, so that a snapshot is of a whole step."""
        if self.guard is not None and self._step is not None and self._step.verdict == "ok":
            self._step = self.guard.after_step()
        self._log(trainer)

    def _log(self, trainer: Any) -> None:
        if self.guard is not None and len(self.guard.events) > self._logged:
            self._logged = len(self.guard.events)
            for logger in trainer.loggers:
                logger.log_metrics(counts(self.guard), step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return self._state if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict


def _scaler(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)
