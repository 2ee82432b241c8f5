"""Guard as a callback of other trainers. Each module needs its package: none is imported here."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..guard import Guard

_OF_THE_TRAINER = ("scheduler", "scaler", "accumulate")


def check_options(options: dict[str, Any]) -> None:
    """Wrong names fail where the callback is made, not when the training starts.

    Raises:
        TypeError: Guard does not know one, or the Trainer decides it.
    """
    known = list(inspect.signature(Guard).parameters)[2:]
    for name in sorted(options):
        if name in _OF_THE_TRAINER:
            raise TypeError(f"GuardCallback: {name} is the Trainer's, leave it out")
        if name not in known:
            free = ", ".join(one for one in known if one not in _OF_THE_TRAINER)
            raise TypeError(
                f"GuardCallback: expected options of Guard, got {name}. These are {free}"
            )


def make_guard(
    options: dict[str, Any], model: Any, optimizer: Any, scaler: Any, by_step: list[Any], *rest: Any
) -> Guard:
    """by_step: schedulers that advance with each step; rest: others, which a roll-back takes along,
    since the rates are in the state of the optimizer."""
    plateaus = [one for one in by_step if isinstance(one, ReduceLROnPlateau)]
    driven = [one for one in by_step if one not in plateaus]
    others = [*options.get("others", ()), *plateaus, *rest]
    return Guard(model, optimizer, scheduler=driven, scaler=scaler, **{**options, "others": others})


def counts(guard: Guard) -> dict[str, int]:
    """How many events of each kind there were, by names for a logger."""
    return dict(Counter(f"guard/{event.kind}" for event in guard.events))


class Losses:
    """And batches, of what is accumulated for one step."""

    def __init__(self, options: dict[str, Any]):
        self._wanted = any(options.get(name) is not None for name in ("checkpoint_dir", "dump_dir"))
        self._losses: list[Any] = []
        self._batches: list[Any] = []

    def add(self, loss: Any) -> None:
        self._losses.append(loss.detach())

    def add_batch(self, batch: Any) -> None:
        """For the dump of a bad step; where there is none, it is not kept alive."""
        if self._wanted:
            self._batches.append(batch)

    def take(self) -> tuple[list[float], Any]:
        """The losses, and the batch or a list of batches."""
        losses, batches = [float(loss) for loss in self._losses], self._batches
        self._losses, self._batches = [], []
        return losses, batches[0] if len(batches) == 1 else batches or None
