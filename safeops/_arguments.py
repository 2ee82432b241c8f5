"""What the calls of this package refuse: no model, no whole number, a word they do not know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}: pass the model")


def check_optimizer(optimizer: Any) -> None:
    """None is none."""
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        kind = type(optimizer).__name__
        raise TypeError(f"expected an optimizer with param_groups, got {kind}: pass the optimizer")


def check_others(others: Any) -> None:
    if not isinstance(others, Iterable):
        kind = type(others).__name__
        raise TypeError(f"expected others to be a list, got {kind}: pass others=[...] with it")


def check_other(other: Any) -> None:
    """One of the others, whose state is taken."""
    known = isinstance(other, (nn.Module, torch.Generator))
    if not known and not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
        kind = type(other).__name__
        raise TypeError(f"expected others with state_dict() and load_state_dict(), got {kind}")


def check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"expected a function {name}, got {type(value).__name__}")


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
