"""Which of the three ways a call takes, and why: the only place that decides.

kernel     plain eager tensors: the autograd Function with the compiled kernels
formulas   compile, export, subclasses, other devices, no kernels: the same Function with the
           torch formulas
composite  a functorch transform or a forward-mode level: differentiable torch operations

The private names of torch that this needs are all here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _functorch_active
from torch._C import _get_tracing_state as _tracing_state
from torch._C._functorch import is_legacy_batchedtensor as _is_legacy_batched
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
    return _fake([x, *(value for value in rest if isinstance(value, Tensor))])


def _fake_gradient(grad: Tensor, saved: Tensor, *constants: float) -> Tensor:
    return _fake([grad, saved])


def _fake_gradients(grad: Tensor, x: Tensor | None, y: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, want_x, want_y = rest
    both, empty = _fake([grad, y if x is None else x, y]), grad.new_empty(0)
    return (both if want_x else empty), (torch.empty_like(both) if want_y else empty)


def _fake(tensors: Sequence[Tensor]) -> Tensor:
    """A broadcast result in the dtype of the first tensor that has dimensions."""
    dtype = next((tensor.dtype for tensor in tensors if tensor.dim()), tensors[0].dtype)
    first, *others = (tensor.to(dtype) for tensor in tensors)
    return functools.reduce(torch.add, others, first) if others else first.abs()


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """function.apply without its own look for transforms, which the route has taken already."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def transforms_active() -> bool:
    """True inside torch.func transforms, forward-mode AD and torch.jit.trace."""
    return _functorch_active() or _forward_ad._current_level >= 0 or _tracing_state() is not None


def is_plain(grad: Tensor) -> bool:
    """What can have changed since the forward took its kernel: a transform, a special tensor."""
    return type(grad) in _PLAIN and grad.layout is _STRIDED and not transforms_active()


def readable(tensor: Tensor) -> bool:
    """A plain CPU tensor in eager mode: a look at its values costs nothing and breaks nothing."""
    if is_compiling() or not is_plain(tensor) or not tensor.is_cpu:
        return False
    return not _is_legacy_batched(tensor)  # torch.autograd.grad(..., is_grads_batched=True)


def why_not_kernel(*operands: Tensor | float) -> str | None:
    """None if an op called on these operands now would run its kernel, else the reason.

    Python numbers do not matter, and an integer tensor counts as the default dtype, which is what
    the ops convert it to (finite_clip leaves integers to torch.clamp).

    >>> import safeops, torch
    >>> safeops.why_not_kernel(torch.ones(2, dtype=torch.complex64)) is None
    False
    """
    return obstacle(*(_promoted(value) for value in operands if not isinstance(value, Real)))


def _promoted(operand: Any) -> Any:
    if not isinstance(operand, Tensor) or operand.is_floating_point() or operand.is_complex():
        return operand
    return operand.new_empty(0, dtype=torch.get_default_dtype())


def obstacle(*tensors: Any) -> str | None:
    """None if these very tensors, of one dtype, go to the kernel as they are, else the reason."""
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
