"""Keep a training run alive: check, clip, skip, roll back, checkpoint, stop."""

from .attempt import StepResult
from .batches import Batches
from .events import Event, GuardWarning, TrainingDiverged
from .guard import Guard
from .policy import Policy
from .replaying import replay
from .summary import GuardReport

__all__ = [
    "Batches",
    "Event",
    "Guard",
    "GuardReport",
    "GuardWarning",
    "Policy",
    "StepResult",
    "TrainingDiverged",
    "replay",
]
