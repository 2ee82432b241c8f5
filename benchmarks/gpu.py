"""What a GPU adds: its clock, its description, and whether a call waits for it."""

from __future__ import annotations

import math
import subprocess
from typing import Any

import torch

from .timing import Call

CPU, CUDA = "cpu", "cuda"
BLOCK = 2e-3  # seconds that a timed block of launches lasts at least
MOST = 1000  # launches of a block
QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def why_none() -> str | None:
    """None if torch can use a GPU, else the reason."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return None if torch.cuda.is_available() else "torch finds no GPU here"


def driver() -> str | None:
    """The version of NVIDIA's driver; None where nobody tells."""
    try:
        said = subprocess.run(QUERY, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(said.stdout.split()), None)


def describe(device: str) -> dict[str, Any]:
    """None of it is there without a GPU."""
    if device == CPU:
        return {"gpu": None, "gpu_memory_gb": None, "driver": None, "cuda": None}
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "gpu_memory_gb": round(properties.total_memory / 2**30),
        "driver": driver(),
        "cuda": torch.version.cuda,
    }


class Launches:
    """A call, launched back to back until that lasts long enough for the GPU's own clock.

    What is claimed of bandwidth is of tensors that no cache holds, so none has to be emptied.
    """

    def __init__(self, call: Call):
        self.call = call
        call()
        once = max(self.elapsed(1), 1e-9)
        self.repetitions = min(MOST, max(1, math.ceil(BLOCK / once)))

    def __call__(self) -> float:
        """Seconds a call, of the GPU or, if that is quicker, of the host which launches."""
        self.call()
        return self.elapsed(self.repetitions) / self.repetitions

    def elapsed(self, repetitions: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repetitions):
            self.call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def waits(call: Call) -> bool:
    """Whether the host waits for the GPU within it."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False
