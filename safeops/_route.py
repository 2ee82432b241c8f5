"""Which of the three ways a call takes, and why: the only place that decides.

kernel     plain eager tensors: the autograd Function with the compiled kernels
formulas   compile, export, subclasses, other devices, no kernels: the same Function with the
           torch formulas (ops on rows keep their kernels under plain compile)
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
from torch._C import _get_dispatch_mode as _dispatch_mode
from torch._C import _get_function_stack_at as _mode_at
from torch._C import _get_tracing_state as _tracing_state
from torch._C import _len_torch_function_stack as _mode_count
from torch._C import _set_tracing_state  # type: ignore[attr-defined]
from torch._C import _TorchDispatchModeKey as _ModeKey
from torch._C._functorch import is_legacy_batchedtensor as _is_legacy_batched
from torch.autograd import forward_ad as _forward_ad
from torch.compiler import is_compiling

from . import _extension

is_legacy_batched = _is_legacy_batched
mode_count = _mode_count  # how many TorchFunctionModes are in force
# torch before 2.7 does not tell an export from a compilation
_is_exporting = getattr(torch.compiler, "is_exporting", is_compiling)
softmax_backward = torch._softmax_backward_data
log_softmax_backward = torch._log_softmax_backward_data

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)
_KERNEL_DTYPES = frozenset(DTYPES)
_ROW_DTYPES = frozenset((*DTYPES, torch.bool))
_STRIDED = torch.strided
NO_CUDA = (
    ": these kernels were built without CUDA; with nvcc and a CUDA build of torch present, "
    "'SAFEOPS_BUILD=cuda pip install --no-build-isolation .' builds those for it too"
)


def raw(name: str) -> Callable[..., Any]:
    """The raw op torch.ops.safeops.<name>, without the wrapper that costs half a microsecond."""
    return getattr(torch.ops.safeops, name).default._op


def traced(name: str) -> Callable[..., Any]:
    """The raw op torch.ops.safeops.<name> as a compiler can put it into its graph."""
    return getattr(torch.ops.safeops, name).default


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


def register_row_fakes(name: str) -> None:
    """The same for an op on rows: every result is contiguous."""
    value = _fake_reduced if name == "logsumexp" else _fake_contiguous
    torch.library.register_fake(f"safeops::{name}", value)
    torch.library.register_fake(f"safeops::{name}_backward", _fake_row_gradient)


def _fake_contiguous(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _fake_row_gradient(grad: Tensor, saved: Tensor, *rest: Any) -> Tensor:
    return saved.new_empty(saved.shape)


def _fake_reduced(x: Tensor, dim: Sequence[int], keepdim: bool, mask: Tensor | None) -> Tensor:
    kept = [1 if i in dim else size for i, size in enumerate(x.shape) if keepdim or i not in dim]
    return x.new_empty(kept)


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """function.apply without its own look for transforms, which the route has taken already."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def function_modes() -> list[Any]:
    """The TorchFunctionModes that are in force."""
    return [_mode_at(i) for i in range(mode_count())]


def transforms_active() -> bool:
    """True inside torch.func transforms, forward-mode AD and torch.jit.trace."""
    return _functorch_active() or _forward_ad._current_level >= 0 or _tracing_state() is not None


def is_plain(grad: Tensor) -> bool:
    """What can have changed since the forward took its kernel: a transform, a special tensor."""
    return type(grad) in _PLAIN and grad.layout is _STRIDED and not transforms_active()


def readable(tensor: Tensor, anywhere: bool = False) -> bool:
    """A plain CPU tensor in eager mode: a look at its values costs nothing and breaks nothing.
    On other devices, if that will do, it breaks nothing."""
    if is_compiling() or not is_plain(tensor) or not (tensor.is_cpu or anywhere):
        return False
    if _dispatch_mode(_ModeKey.PROXY) is not None:  # make_fx, which would bake the answer in
        return False
    return not is_legacy_batched(tensor)  # torch.autograd.grad(..., is_grads_batched=True)


def sizes(tensor: Tensor) -> Sequence[int]:
    """The shape in numbers: inside torch.jit.trace that of torch holds tensors."""
    trace = _tracing_state()
    if trace is None:
        return tensor.shape
    _set_tracing_state(None)
    try:
        return tensor.shape
    finally:
        _set_tracing_state(trace)


def is_empty(tensor: Tensor) -> bool:
    """Without elements; False for a size of which only the run of a graph will tell."""
    if not is_compiling():
        return 0 in sizes(tensor)
    from torch.fx.experimental import symbolic_shapes

    decided = getattr(symbolic_shapes, "guard_or_false", bool)  # torch before 2.8 has none
    return decided(tensor.numel() == 0)


def why_not_kernel(*operands: Tensor | float | None) -> str | None:
    """None if an op called on these operands now would run its kernel, else the reason.

    Python numbers and None do not matter, nor does the dtype of a mask or an integer tensor: the
    ops convert integers to the default dtype (finite_clip leaves them to torch.clamp). Under
    torch.compile the answer is that of the elementwise ops; softmax, log_softmax and logsumexp
    keep their kernels there.

    >>> import safeops, torch
    >>> safeops.why_not_kernel(torch.ones(2, dtype=torch.complex64)) is None
    False
    """
    return obstacle(*(_promoted(value) for value in operands if not _neutral(value)))


def _neutral(operand: Any) -> bool:
    return operand is None or isinstance(operand, Real)


def _promoted(operand: Any) -> Any:
    if not isinstance(operand, Tensor) or operand.is_floating_point() or operand.is_complex():
        return operand
    return operand.new_empty(0, dtype=torch.get_default_dtype())


def obstacle(
    *tensors: Any, dtypes: frozenset[torch.dtype] = _KERNEL_DTYPES, kept: bool = False
) -> str | None:
    """None if these very tensors, of one dtype, go to the kernel as they are, else the reason.

    kept: this kernel stays in the graph of torch.compile.
    """
    if _extension.reason is not None:
        return _extension.reason
    if is_compiling() and (not kept or _is_exporting()):
        return "under torch.compile and torch.export the torch formulas are fused instead"
    if transforms_active():
        return "inside a torch.func transform, forward-mode AD or a jit trace"
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return f"{type(tensor).__name__} is not a plain torch.Tensor"
        if tensor.dtype not in dtypes:
            return f"no kernel for {tensor.dtype}"
        if not tensor.is_cpu and (why := _device_obstacle(tensor, tensors)) is not None:
            return why
        if tensor.layout is not _STRIDED or tensor.is_nested:
            return "no kernel for sparse, nested or other non-strided tensors"
    return None


@functools.cache
def _card_obstacle(device: torch.device) -> str | None:
    """Of a GPU that is older than what the kernels were compiled for."""
    if device.type != "cuda" or _extension.module is None:
        return None
    oldest = _extension.module.build_info()["compute capability from"]
    has = torch.cuda.get_device_capability(device)
    if has >= tuple(map(int, oldest.split("."))):
        return None
    return (
        f"the kernels were built for GPUs of compute capability {oldest} and newer, and {device} "
        f"has {has[0]}.{has[1]}: TORCH_CUDA_ARCH_LIST={has[0]}.{has[1]} builds them for it"
    )


def _device_obstacle(tensor: Tensor, tensors: Sequence[Any]) -> str | None:
    """Of a tensor that is not on the CPU. A 0-dim CPU tensor goes with every device."""
    device = tensor.device
    if device.type not in _extension.devices:
        return f"no kernel for device {device}{NO_CUDA if tensor.is_cuda else ''}"
    if (why := _card_obstacle(device)) is not None:
        return why
    if any(o.device != device and not (o.is_cpu and o.dim() == 0) for o in tensors):
        return "the tensors are on several devices"
    return None


def row_obstacle(x: Any, mask: Any, kept: bool = False) -> str | None:
    """The same for an op on rows, of which a mask may choose the elements."""
    if mask is None:
        return obstacle(x, kept=kept)
    why = obstacle(x, mask, dtypes=_ROW_DTYPES, kept=kept)
    if why is None and mask.is_cpu is not x.is_cpu:
        return "x and mask are on several devices"
    if why is None and (mask.dtype is not torch.bool or x.dtype is torch.bool):
        return f"no kernel for {x.dtype} with a mask of {mask.dtype}"
    return why
