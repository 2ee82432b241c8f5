"""The state of all random numbers: take it, put it back."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch


def random_numbers() -> Callable[[], None]:
    """Take the state; what is returned puts it back, as often as called."""
    state = random_state()
    return lambda: set_random_state(state)


def random_state() -> dict[str, Any]:
    """Of Python, of NumPy if it is there, and of torch on the CPU and on all CUDA devices once
    there are any in use."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    numpy = _numpy()
    return {
        "python": random.getstate(),
        "numpy": numpy.get_state() if numpy else None,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if started else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """What was not there when the state was taken stays as it is."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    numpy = _numpy()
    if numpy and state["numpy"] is not None:
        numpy.set_state(state["numpy"])
    for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(one, device)


def _numpy() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)
