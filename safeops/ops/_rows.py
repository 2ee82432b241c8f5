"""What the ops on rows share: from a call to the kernel, the formulas or the composite."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import _extension
from .._route import (
    is_plain,
    plain_apply,
    raw,
    register_row_fakes,
    row_obstacle,
    sizes,
    traced,
    transforms_active,
)
from ._options import COMPUTE, check

Place = tuple[Any, ...]  # where the rows lie: (dim,), or (dims, keepdim)
FORMULAS, KERNEL, TRACED = range(3)  # TRACED: the kernel in the graph of torch.compile


class Rows:
    """One op: its kernel, its torch formulas and the autograd Function over both.

    name         of the public function and of the raw ops torch.ops.safeops.<name>(_backward)
    value        (dtype of the result, x, *place, mask): the formula, no derivative wanted
    gradient     (dtype, grad, *saved, *place, mask): its gradient, which can be differentiated
    composite    as value, to be differentiated
    keeps_input  whether backward takes x beside the result

    The formulas get tensors of the compute type (float32 for half types).
    """

    def __init__(
        self,
        name: str,
        value: Callable[..., Tensor],
        gradient: Callable[..., Tensor],
        composite: Callable[..., Tensor],
        keeps_input: bool = False,
    ):
        self.name, self.keeps_input = name, keeps_input
        self.value, self.gradient, self.composite = value, gradient, composite
        self.forwards: tuple[Any, ...] = (self.by_formula,)
        self.backwards: tuple[Any, ...] = (self.gradient_by_formula,)
        self.function: Any = type(name.title().replace("_", ""), (self._make_function(),), {})
        self.apply = plain_apply(self.function)
        if _extension.module is not None:
            self._take_kernels()

    def _take_kernels(self) -> None:
        names = self.name, f"{self.name}_backward"
        try:
            self.kernel, backward = map(raw, names)
        except AttributeError:
            _extension.give_up(f"the compiled kernels lack {self.name}: build safeops again")
        else:
            forward, backward_traced = map(traced, names)
            self.forwards += self.kernel, forward
            self.backwards += backward, backward_traced
            register_row_fakes(self.name)

    def __call__(self, x: Any, mask: Any, dim: Any) -> Tensor:
        if row_obstacle(x, mask) is not None:
            return self.general(x, mask, (dim,))
        if mask is not None and mask.shape != x.shape:
            check_mask_shape(self.name, x, mask)
        dim = wrapped(self.name, dim, x.dim())
        if x.requires_grad and torch.is_grad_enabled():
            return self.apply((KERNEL, (dim,)), x, mask)
        return self.kernel(x, dim, mask)

    def general(self, x: Any, mask: Any, place: Place) -> Tensor:
        """The op on whatever the user gave."""
        x = self.operand(x)
        check_mask(self.name, x, mask)
        place = self.placed(x.dim(), *place)
        if transforms_active():
            return self.by_formula(x, *place, mask, formula=self.composite)
        kept = row_obstacle(x, mask, kept=True) is None
        way = FORMULAS if not kept else TRACED if is_compiling() else KERNEL
        return self.function.apply((way, place), x, mask)

    def operand(self, x: Any) -> Tensor:
        """The checked tensor."""
        check(self.name, x)
        if not x.is_floating_point():
            raise TypeError(
                f"{self.name}: expected a floating-point tensor, got {x.dtype}; "
                "pass dtype=torch.float32 to convert it"
            )
        return x

    def placed(self, ndim: int, dim: Any) -> Place:
        """The checked place, with dims counted from the front."""
        return (wrapped(self.name, dim, ndim),)

    def by_formula(
        self, x: Tensor, *rest: Any, formula: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """The value by the torch formula."""
        formula = formula or self.value
        return formula(x.dtype, x.to(COMPUTE[x.dtype]), *rest).to(x.dtype).contiguous()

    def gradient_by_formula(self, grad: Tensor, *rest: Any) -> Tensor:
        """The gradient by the torch formula."""
        dtype, compute = grad.dtype, COMPUTE[grad.dtype]
        saved = [value.to(compute) if is_floating(value) else value for value in rest]
        return self.gradient(dtype, grad.to(compute), *saved).to(dtype).contiguous()

    def _make_function(self) -> type[torch.autograd.Function]:
        op = self

        class Function(torch.autograd.Function):
            """apply((way, place), x, mask)"""

            @staticmethod
            def forward(
                ctx: Any, call: tuple[int, Place], x: Tensor, mask: Tensor | None
            ) -> Tensor:
                ctx.call = way, place = call
                result = op.forwards[way](x, *place, mask)
                ctx.save_for_backward(*((x, result) if op.keeps_input else (result,)), mask)
                return result

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
                way, place = ctx.call
                *saved, mask = ctx.saved_tensors
                backward = op.backwards[_way_back(way, grad)]
                return None, backward(grad, *saved, *place, mask), None

        return Function


def _way_back(way: int, grad: Tensor) -> int:
    """The kernel only where nobody differentiates again; a compiler may have only the backward."""
    if way is not KERNEL:
        return way
    if torch.is_grad_enabled() or not is_plain(grad):
        return FORMULAS
    return TRACED if is_compiling() else KERNEL


def is_floating(value: Any) -> bool:
    """A tensor with numbers, not a mask and no part of a place."""
    return isinstance(value, Tensor) and value.is_floating_point()


def converted(op: str, x: Any, dtype: torch.dtype) -> Tensor:
    """x in the dtype that the user asked for."""
    check(op, x)
    if dtype not in COMPUTE:
        raise TypeError(
            f"{op}: dtype must be torch.float64, float32, float16 or bfloat16, got {dtype!r}"
        )
    return x.to(dtype)


def wrapped(op: str, dim: Any, ndim: int) -> int:
    """dim counted from the front. A 0-dim tensor has one row, as in torch."""
    ndim = ndim or 1
    if type(dim) is not int:
        dim = _index(op, dim)
    if not -ndim <= dim < ndim:
        raise IndexError(
            f"{op}: Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], "
            f"but got {dim})"
        )
    return dim + ndim if dim < 0 else dim


def _index(op: str, dim: Any) -> int:
    if isinstance(dim, bool | Tensor) or not hasattr(dim, "__index__"):
        either = " or a tuple of ints" if op == "logsumexp" else ""
        raise TypeError(f"{op}: dim must be an int{either}, got {type(dim).__name__}")
    return operator.index(dim)


def check_mask(op: str, x: Tensor, mask: Any) -> None:
    """A clear error for everything that is no mask of x."""
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{op}: mask must be a bool tensor, True where an element takes part, got "
            f"{type(mask).__name__}; wrap it in torch.as_tensor(mask, dtype=torch.bool)"
        )
    if mask.dtype is not torch.bool:
        raise TypeError(
            f"{op}: mask must be a bool tensor, True where an element takes part, got "
            f"{mask.dtype}; if it is meant to be added to x, pass mask == 0, if it holds 1 where "
            "an element takes part, pass mask == 1"
        )
    check(f"{op}: mask", mask)
    if mask.device != x.device:
        raise RuntimeError(
            f"{op}: expected x and mask on one device, got {x.device} and {mask.device}; "
            "move one with .to(...)"
        )
    check_mask_shape(op, x, mask)


def check_mask_shape(op: str, x: Tensor, mask: Tensor) -> None:
    """Both from the last dimension on."""
    part, whole = sizes(mask), sizes(x)
    pairs = zip(reversed(part), reversed(whole), strict=False)
    if len(part) > len(whole) or any(ours != size and ours != 1 for ours, size in pairs):
        raise RuntimeError(
            f"{op}: a mask of shape {tuple(part)} does not broadcast to x of shape "
            f"{tuple(whole)}; from the last dimension on, each of its sizes must be x's or 1 "
            "(a padding mask of [batch, keys] is mask[:, None, None, :] for attention scores)"
        )
