"""What compiled code and checkpoints do to those who want to see every call of a module."""

from __future__ import annotations

import sys
from typing import Any

import torch


class _Eagerly:
    """While entered, what is compiled runs as it was written: compiled code does not see hooks that
    come later. Many may enter it, and leave it in any order."""

    waiting = 0
    stance: Any = None

    def __enter__(self) -> None:
        self.waiting += 1
        if self.stance is None and "torch._dynamo" in sys.modules:
            self.stance = torch.compiler.set_stance("force_eager")

    def __exit__(self, *error: object) -> None:
        self.waiting -= 1
        if not self.waiting and self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None


EAGERLY = _Eagerly()


def recomputing() -> bool:
    """Whether a forward runs inside of a backward, as checkpointed ones do."""
    return torch._C._current_graph_task_id() != -1
