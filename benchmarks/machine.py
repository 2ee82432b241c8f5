"""What the numbers were measured on, and by which route."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import safeops
from safeops import _extension, _multi_tensor

from . import gpu

STAT = Path("/proc/stat")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PARTS = ("level", "type", "size")
DISTURBED = 0.3  # cores busy with other processes, from which on times are not to be trusted


def cores() -> int:
    """Those this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def caches() -> list[str]:
    """As ["L1 Data 48K", ...]; empty where the system does not tell."""
    try:
        return [
            "L{} {} {}".format(*((index / part).read_text().strip() for part in PARTS))
            for index in sorted(CACHES.glob("index*"))
        ]
    except OSError:
        return []


def level() -> str | None:
    """The level of the kernels that are loaded, None without kernels."""
    return _extension.module.level() if _extension.module is not None else None


def why_no_kernels(device: str = gpu.CPU) -> str | None:
    """None if a plain float32 call there runs its kernel, else the reason."""
    return safeops.why_not_kernel(torch.ones(1, device=device))


def why_no_list_kernels(device: str = gpu.CPU) -> str | None:
    """None if a list of plain float32 tensors there is read by the kernels, else the reason."""
    if _multi_tensor.read_one(torch.ones(1, device=device)) is not None:
        return None
    reason = why_no_kernels(device)
    return reason or "this torch does not tell where its tensors lie (DLPack exchange)"


@dataclass(frozen=True)
class Clock:
    """Seconds since some start: on the wall, of this process and of all processes."""

    wall: float
    own: float
    everyone: float

    @classmethod
    def now(cls) -> Clock | None:
        """None where the system does not tell."""
        try:
            ticks = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return None
        busy = sum(ticks) - ticks[3] - ticks[4]  # all but idle and waiting for the disk
        return cls(time.perf_counter(), time.process_time(), busy / os.sysconf("SC_CLK_TCK"))


def elsewhere(start: Clock | None, end: Clock | None) -> float | None:
    """How many cores were busy with other processes between the two."""
    if start is None or end is None:
        return None
    others = (end.everyone - start.everyone) - (end.own - start.own)
    return max(0.0, others / (end.wall - start.wall))


def route(device: str) -> str:
    reason = why_no_kernels(device)
    place = f"level {level()}" if device == gpu.CPU else "on the GPU"
    return f"kernels loaded, {place}" if reason is None else f"torch formulas: {reason}"


def describe(device: str = gpu.CPU) -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": cores(),
        "caches": caches(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "safeops": safeops.__version__,
        "safeops_level": level(),
        "safeops_route": route(device),
        "device": device,
        **gpu.describe(device),
    }
