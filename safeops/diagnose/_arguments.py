"""What the calls of this package refuse: no model, no whole number, a word they do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}: pass the model")


def check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"expected a whole number for {name}, got {type(value).__name__}: {value!r:.40}"
        )
    if value < least:
        raise ValueError(f"expected {name} >= {least}, got {value}")


def check_one_of(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"expected {name} to be one of {', '.join(known)}, got {value!r}")
