"""One step as it is tried: its closures, their batches, and what the random numbers were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from .company import unsynchronised

Closure = Callable[[], Tensor]


class StepResult(NamedTuple):
    """What came of a step.

    loss: of the step, the mean of its parts under accumulation; NaN if it is not known.
    verdict: "ok"; "skipped": nothing has changed; "rolled_back": the state is that of the last
        good snapshot; "accumulated": gradients were added, the step is still to come.
    norm: of all gradients before the clip; clipped: whether they were above max_norm.
    finding: the culprit that the replay named, or None.
    """

    loss: float
    verdict: str
    norm: float = float("nan")
    clipped: bool = False
    finding: Any = None


class Attempt:
    """Parts of a step, of which the last is followed by that of the optimizer."""

    def __init__(
        self,
        model: nn.Module,
        parts: int,
        scaled: Callable[[Tensor], Tensor],
        random: dict[str, Any] | None,
    ):
        self._model, self._parts, self._scaled, self.random = model, parts, scaled, random
        self.closures: list[Closure] = []
        self.batches: list[Any] = []
        self.losses: list[float] = []
        self.refused, self.problem = False, ""  # a batch is bad, here or on another rank

    @classmethod
    def of_batch(cls, batch: Any) -> Attempt:
        """One that was made elsewhere: of it there is the batch alone."""
        attempt = cls(nn.Module(), 1, lambda loss: loss, None)
        attempt.batches = [batch]
        return attempt

    @property
    def complete(self) -> bool:
        return len(self.closures) == self._parts

    def add(self, closure: Closure, batch: Any) -> None:
        self.closures.append(closure)
        self.batches.append(batch)

    def run(self) -> None:
        """The part that was added last."""
        self.losses.append(float(self._run(self.closures[-1], self.complete).detach()))

    def _run(self, closure: Closure, last: bool) -> Tensor:
        with unsynchronised(self._model, not last):
            loss = check_loss(closure())
            part = loss / self._parts if self._parts > 1 else loss
            self._scaled(part).backward()  # type: ignore[no-untyped-call]
        return loss

    def evaluate(self) -> Tensor:
        """The one part, for an optimizer that asks for it as often as it likes."""
        loss = self._run(self.closures[0], True)
        self.losses = [float(loss.detach())]
        return loss

    def again(self) -> None:
        """All parts as they were."""
        for place, closure in enumerate(self.closures):
            self._run(closure, place + 1 == len(self.closures))


def check_loss(loss: Any) -> Tensor:
    expected = "expected the closure to return the loss, a tensor of one element with a graph"
    if not isinstance(loss, Tensor):
        raise TypeError(f"{expected}, got {type(loss).__name__}: return loss_fn(model(x), y)")
    if loss.numel() != 1:
        raise ValueError(f"{expected}, got the shape {list(loss.shape)}: take its mean or sum")
    if not loss.requires_grad:
        raise ValueError(
            f"{expected}, got one that does not require grad: do not detach it, nor call backward()"
        )
    return loss


def given_loss(loss: Any) -> list[float]:
    """What step() was given, if anything."""
    if loss is None:
        return []
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ValueError(
            f"expected a loss of one element, got the shape {list(loss.shape)}: take its mean"
        )
    if not isinstance(loss, (Tensor, int, float)) or isinstance(loss, bool):
        raise TypeError(f"expected the loss, a tensor or a number, got {type(loss).__name__}")
    return [float(loss.detach() if isinstance(loss, Tensor) else loss)]
