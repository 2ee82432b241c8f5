"""Which of the three ways a call takes, and why: the only place that decides.

kernel     plain eager tensors: the autograd Function with the compiled kernels
formulas   compile, export, subclasses, other devices, no kernels: the same Function with the
           torch formulas
composite  a functorch transform or a forward-mode level: differentiable torch operations

The private names of torch that this needs are all here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _functorch_active
from torch._C import _get_tracing_state as _tracing_state
from torch.autograd import forward_ad as _forward_ad
from torch.compiler import is_compiling

from . import _extension

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)
_KERNEL_DTYPES = frozenset(DTYPES)
_STRIDED = torch.strided


def raw(name: str) -> Callable[..., Any]:
    """The raw op torch.ops.safeops.<name>, without the wrapper that costs half a microsecond."""
    return getattr(torch.ops.safeops, name).default._op


def register_fakes(name: str, inputs: int) -> None:
    """Shapes, strides and dtypes of a raw op and its backward, for tensors without data."""
    torch.library.register_fake(f"safeops::{name}", _fake_value)
    backward = _fake_gradient if inputs == 1 else _fake_gradients
    torch.library.register_fake(f"safeops::{name}_backward", backward)


def _fake_value(x: Tensor, *rest: Any) -> Tensor:
    others = [value for value in rest if isinstance(value, Tensor)]
    return x.abs() if not others else x + others[0].to(x.dtype)


def _fake_gradient(grad: Tensor, saved: Tensor, *constants: float) -> Tensor:
    return grad + saved


def _fake_gradients(grad: Tensor, x: Tensor | None, y: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, want_x, want_y = rest
    both = grad + (y if x is None else x).to(grad.dtype) + y.to(grad.dtype)
    empty = grad.new_empty(0)
    return (both if want_x else empty), (torch.empty_like(both) if want_y else empty)


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """function.apply without its own look for transforms, which the route has taken already."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def transforms_active() -> bool:
    """True inside torch.func transforms, forward-mode AD and torch.jit.trace."""
    return _functorch_active() or _forward_ad._current_level >= 0 or _tracing_state() is not None


def is_plain(grad: Tensor) -> bool:
    """What can have changed since the forward took its kernel: a transform, a special tensor."""
    return type(grad) in _PLAIN and grad.layout is _STRIDED and not transforms_active()


def why_not_kernel(*tensors: Tensor) -> str | None:
    """None if a safeops op called on these tensors now would run its kernel, else the reason.

    >>> import safeops, torch
    >>> safeops.why_not_kernel(torch.ones(2, dtype=torch.complex64)) is None
    False
    """
    if _extension.reason is not None:
        return _extension.reason
    if is_compiling():
        return "under torch.compile and torch.export the torch formulas are fused instead"
    if transforms_active():
        return "inside a torch.func transform, forward-mode AD or a jit trace"
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return f"{type(tensor).__name__} is not a plain torch.Tensor"
        if tensor.dtype not in _KERNEL_DTYPES:
            return f"no kernel for {tensor.dtype}"
        if not tensor.is_cpu:
            return f"no kernel for device {tensor.device}"
        if tensor.layout is not _STRIDED or tensor.is_nested:
            return "no kernel for sparse, nested or other non-strided tensors"
    return None
