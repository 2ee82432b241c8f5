"""Gradients: check them, clip them, and keep a bad one from destroying the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from . import _clip, _gradients, _queued
from ._gradients import Gradients, NonFiniteGradientError, NonFiniteGradientWarning
from ._lots import ONE, Lots
from ._multi_tensor import clip_in_place, read_one
from ._reports import ClipReport, FiniteReport, TensorStats
from .ops.finite_clip import constants

__all__ = [
    "ClipReport",
    "FiniteReport",
    "NonFiniteGradientError",
    "NonFiniteGradientWarning",
    "TensorStats",
    "check_finite",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_report",
    "finite_clip_",
]

Tensors = Tensor | nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    nonfinite: str = "skip",
    names: Sequence[str] | None = None,
    process_group: Any = None,
) -> Tensor:
    r"""g · min(1, max_norm / ‖g‖) in place, ‖g‖ being the norm of all gradients as one vector.

    A drop-in for torch.nn.utils.clip_grad_norm_, which turns every gradient into NaN when one
    holds a NaN, and into 0 when squares overflow. Here the gradients are read once; nothing is
    written unless something is to be clipped, and a bad element never touches a good one.

    Args:
        parameters: a module, a tensor, or an iterable of tensors or of (name, tensor) pairs; a
            gradient that comes twice counts once. Dense, sparse and DTensor gradients of float64,
            float32, float16, bfloat16 and complex dtypes, on any device.
        max_norm: the largest norm, >= 0. The factor is the exact quotient: torch adds 1e-6 to ‖g‖.
        norm_type: the order p of (Σ |g|^p)^(1/p), "inf" for the largest magnitude. 0 counts the
            elements that are not 0 (torch counts tensors).
        error_if_nonfinite: True means nonfinite="raise".
        foreach: accepted for torch's sake; it changes nothing.
        nonfinite: what to do if an element is NaN or ±inf.
            "skip": every ``.grad`` becomes None, so that the next step of any torch optimizer
            leaves weights, moments and step counts as they are; a warning names the parameters.
            "drop": bad elements become 0, and the others are clipped by their own norm; the same
            warning. "keep": nothing is changed. "raise": nothing is changed, NonFiniteGradientError
            names parameters, counts and first indices.
            On one GPU that has kernels, with norms of order 1 and 2, "keep" and "drop" wait for
            nothing, and so drop cannot warn; the others copy one flag, since ``.grad`` can become
            None on the host only.
        names: what to call the parameters in messages; a module brings its own.
        process_group: ranks that hold different parts of one model; all get the norm of all and
            decide alike. DTensor gradients bring their mesh, and replicas (DDP) need none.

    Returns:
        ‖g‖ before the clip, 0-dim: float64 if a gradient is, else float32. NaN or ±inf as the
        gradients; under "drop" the norm of the finite elements. A finite norm never overflows
        (it ends at the dtype's range) and never vanishes.

    Raises:
        TypeError: parameters that are no tensors; max_norm or norm_type that are no numbers.
        ValueError: max_norm negative or NaN, norm_type NaN, an unknown policy, names of another
            length, tensors that neither require grad nor have one. No gradient is changed then.

    >>> p = torch.zeros(2, requires_grad=True)
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> clip_grad_norm_([p], max_norm=1.0), p.grad
    (tensor(5.), tensor([0.6000, 0.8000]))

    Source: Pascanu, Mikolov and Bengio, 2013, "On the difficulty of training recurrent neural
    networks", section 3.2.
    """
    policy = _gradients.policy(nonfinite, error_if_nonfinite)
    limit, order = _gradients.limit("max_norm", max_norm), _gradients.order(norm_type)
    gradients = Gradients(_gradients.listed(parameters, names), order, process_group)
    gradients.check_missing()
    norm = _queued.clip(gradients, limit, policy) if gradients.queued else None
    return _clipped(gradients, limit, policy)[0].total_norm if norm is None else norm


def _clipped(
    gradients: Gradients, limit: float, policy: str, detailed: bool = False
) -> tuple[_clip.Outcome, ClipReport | None]:
    outcome = _clip.decide(gradients, limit, policy)
    return outcome, _clip.carry_out(gradients, outcome, limit, policy, detailed=detailed)


def clip_report(
    parameters: Tensors,
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    nonfinite: str = "skip",
    names: Sequence[str] | None = None,
    process_group: Any = None,
) -> ClipReport:
    """clip_grad_norm_, and what the same read found in each gradient.

    Args:
        parameters, max_norm, norm_type, error_if_nonfinite, foreach: as in clip_grad_norm_.
        nonfinite, names, process_group: the same; errors too.

    Returns:
        A ClipReport: a row for each gradient of this rank (its norm of order norm_type, largest
        magnitude, counts of NaN, +inf, -inf, zeros and subnormals), total_norm, factor, verdict.

    >>> p = torch.zeros(2, requires_grad=True)
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> report = clip_report([("weight", p)], max_norm=1.0)
    >>> report.verdict, report[0].name, report[0].largest
    ('clipped', 'weight', 4.0)
    """
    policy = _gradients.policy(nonfinite, error_if_nonfinite)
    limit, order = _gradients.limit("max_norm", max_norm), _gradients.order(norm_type)
    gradients = Gradients(_gradients.listed(parameters, names), order, process_group, True)
    gradients.check_missing()
    _, report = _clipped(gradients, limit, policy, True)
    assert report is not None
    return report


def clip_grad_value_(
    parameters: Tensors,
    clip_value: float,
    foreach: bool | None = None,
    *,
    nonfinite: str = "skip",
    names: Sequence[str] | None = None,
) -> None:
    """min(max(g, -clip_value), clip_value) in place, for every element of every gradient.

    A drop-in for torch.nn.utils.clip_grad_value_, which takes an infinity for a large number and
    lets a NaN pass. Nothing is written unless an element is beyond the bound.

    Args:
        parameters, names, nonfinite: as in clip_grad_norm_.
        clip_value: the bound, >= 0.
        foreach: accepted for torch's sake; it changes nothing.

    Raises:
        As clip_grad_norm_; TypeError for complex gradients too.

    >>> p = torch.zeros(2, requires_grad=True)
    >>> p.grad = torch.tensor([3.0, -0.5])
    >>> clip_grad_value_([p], 1.0)
    >>> p.grad
    tensor([ 1.0000, -0.5000])
    """
    value, policy = _gradients.limit("clip_value", clip_value), _gradients.policy(nonfinite)
    gradients = Gradients(_gradients.listed(parameters, names), math.inf)
    gradients.check_missing()
    _clip.check_real(gradients)
    _clip.clip_value(gradients, value, policy)


def finite_clip_(
    tensors: Tensor | Iterable[Tensor],
    min: float | None = None,
    max: float | None = None,
    *,
    nan: float | None = None,
) -> None:
    """safeops.finite_clip in place, over a tensor or many: min(max(x, min), max), nan for NaN.

    Args:
        tensors: floating tensors of any shapes and dtypes.
        min, max, nan: as in finite_clip, each rounded to the tensor's dtype.

    Raises:
        TypeError: tensors of another kind. RuntimeError: a leaf that requires grad, outside
            torch.no_grad(), as torch's own in-place operations. Nothing is changed then.

    >>> x = torch.tensor([float("nan"), float("inf"), 0.5])
    >>> finite_clip_([x], -1.0, 1.0, nan=0.0)
    >>> x
    tensor([0.0000, 1.0000, 0.5000])
    """
    listed = _gradients.listed(tensors, None, "tensors").tensors
    _clip.check_writable(listed)
    for dtype in dict.fromkeys(tensor.dtype for tensor in listed):
        bounds = constants(dtype, min, max, nan)
        clip_in_place([tensor for tensor in listed if tensor.dtype is dtype], *bounds)


def check_finite(
    tensors: Tensors | Mapping[str, Tensor],
    *,
    grads: bool = True,
    names: Sequence[str] | None = None,
) -> FiniteReport:
    """isfinite(x).all() for many tensors in one read, with norms, extremes and counts of each.

    Args:
        tensors: a tensor, an iterable of tensors or of (name, tensor) pairs, a mapping, or a
            module: its parameters and buffers and, with grads, its gradients. Integers and
            booleans are finite by nature and left out.
        grads: a module's gradients too, as "name.grad".
        names: what to call the tensors of an iterable.

    Returns:
        A FiniteReport: true if all is finite, and a row for each tensor. Of a DTensor the part of
        this rank is read.

    Raises:
        TypeError: what is no tensor.

    >>> report = check_finite({"loss": torch.tensor([1.0, float("nan")])})
    >>> bool(report), report.bad[0].name, report.bad[0].nan
    (False, 'loss', 1)
    """
    if names is None and (readings := read_one(tensors)) is not None:
        return FiniteReport(((readings, ONE),))
    if isinstance(tensors, nn.Module):
        tensors = _of_module(tensors, grads)
    given = _gradients.listed(tensors, names, "tensors")
    _gradients.check_tensors(given.tensors, "tensors")
    pairs = zip(given.names(), given.tensors, strict=True)
    floats = [(n, t) for n, t in pairs if t.is_floating_point() or t.is_complex()]
    return FiniteReport(Lots([t for _, t in floats], detailed=True).found([n for n, _ in floats]))


def _of_module(module: nn.Module, grads: bool) -> list[tuple[str, Tensor]]:
    parameters = list(module.named_parameters())
    found = [*parameters, *module.named_buffers()]
    if grads:
        pairs = ((f"{name}.grad", parameter.grad) for name, parameter in parameters)
        found += [(name, grad) for name, grad in pairs if grad is not None]
    return found
