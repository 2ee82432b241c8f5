"""What the machine does with as many bytes as an op must move."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from .gpu import CPU
from .timing import Call


def copies_of(moved: int, device: str = CPU) -> dict[str, Call]:
    """A copy that reads and writes this many bytes in all."""
    source = torch.ones(max(1, moved // 8), dtype=torch.float32, device=device)
    target = torch.ones_like(source)
    return {"copy": lambda: target.copy_(source)}


def reads_of(moved: int, device: str = CPU) -> dict[str, Call]:
    """Reads of this many bytes that lie together; which is the fastest depends on the machine."""
    doubles = torch.ones(max(1, moved // 8), dtype=torch.float64, device=device)
    floats, integers = doubles.view(torch.float32), doubles.view(torch.int64)
    return {
        "sum": floats.sum,
        "sum of int64": integers.sum,
        "dot": lambda: floats.dot(floats),
        "dot of float64": lambda: doubles.dot(doubles),
    }


COPY, READ = "copy", "read"
YARDSTICKS: Mapping[str, Callable[[int, str], dict[str, Call]]] = {COPY: copies_of, READ: reads_of}
