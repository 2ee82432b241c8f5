"""A clip that is decided on the GPU where the gradients lie, without waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _extension
from ._lots import Lots

if TYPE_CHECKING:
    from ._gradients import Gradients

NORMS = (2.0, 1.0)  # that the kernels read
BUILT = hasattr(_extension.module, "GpuReadings")  # without it nobody needs to ask
TOLD = ("skip", "raise")  # policies for which the host must know what is not finite


def possible(lots: Lots) -> bool:
    """Whether all of them are plain tensors on one GPU, for which there are kernels."""
    first = lots.lots[0].readings.on_gpu if lots.lots else False
    return first and len(lots.lots) == 1 and not lots.parts and lots.p in NORMS


def clip(gradients: Gradients, max_norm: float, policy: str) -> Tensor | None:
    """g · min(1, max_norm / ‖g‖), and ‖g‖, as soon as the GPU gets there. None if something is not
    finite and somebody is to be told: then nothing has been written."""
    lot, norm = gradients.lots.lots[0], _empty_norm(gradients)
    decision = lot.readings.decide(max_norm, policy == "drop", norm)
    if _is_host(norm) and decision.bad:
        return None
    lot.batch.scale_if(decision)
    return _finished(lot.batch, decision, norm, _is_host(norm) or policy in TOLD)


def _empty_norm(gradients: Gradients) -> Tensor:
    dtype = torch.float64 if gradients.lots.any_double() else torch.float32
    return torch.empty((), dtype=dtype, device=gradients.device)


def _is_host(norm: Tensor) -> bool:
    """Where the kernels are emulated a look costs nothing."""
    return not norm.is_cuda


def _finished(batch: Any, decision: Any, norm: Tensor, told: bool) -> Tensor | None:
    """For autograd it is written, unless the host knows better."""
    if not told or decision.writes:
        torch.autograd.graph.increment_version(batch.tensors)
    return None if told and decision.bad else norm
