"""Random numbers that go on, after a trial, as if there had been none."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch


def random_numbers() -> Callable[[], None]:
    """Take the state of Python's, of NumPy's if it is there, and of torch's on the CPU and on all
    CUDA devices once there are any in use; what is returned puts it back, as often as called."""
    python, cpu, numpy = random.getstate(), torch.get_rng_state(), _numpy()
    of_numpy = numpy.get_state() if numpy else None
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if started else []

    def back() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numpy:
            numpy.set_state(of_numpy)
        for device, state in enumerate(cuda):
            torch.cuda.set_rng_state(state, device)

    return back


def _numpy() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)
