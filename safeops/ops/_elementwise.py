"""What the elementwise ops share: from a call to the kernel, the formulas or the composite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import _extension
from .._route import (
    is_plain,
    obstacle,
    plain_apply,
    raw,
    readable,
    register_fakes,
    transforms_active,
)
from ._formulas import Formulas
from ._options import COMPUTE, Constants, as_floating, check
from ._scaling import beyond_half, narrowed, widened

_CPU = torch.device("cpu")
Call = tuple[bool, torch.dtype, Constants]  # kernel or formulas, the result's dtype, constants


class Elementwise:
    """One op: its kernel, its torch formulas and the autograd Function over both.

    name       of the raw ops, torch.ops.safeops.<name> and <name>_backward
    public     what users call it, for errors
    constants  (dtype, *options) -> the numbers that kernel and formulas take; checks the options
    """

    def __init__(
        self, name: str, public: str, constants: Callable[..., Constants], formulas: Formulas
    ):
        self.name, self.public = name, public
        self.constants, self.formulas = constants, formulas
        self.remembered = functools.lru_cache(maxsize=256, typed=True)(constants)
        self.function: Any = type(public.title().replace("_", ""), (self.make_function(),), {})
        self.apply = plain_apply(self.function)
        if _extension.module is not None:
            self._take_kernels()

    def _take_kernels(self) -> None:
        try:
            self.kernel, self.kernel_backward = raw(self.name), raw(f"{self.name}_backward")
        except AttributeError:
            _extension.give_up(f"the compiled kernels lack {self.name}: build safeops again")
        else:
            register_fakes(self.name, len(self.formulas.gradients))

    def make_function(self) -> type[torch.autograd.Function]:
        """The autograd Function: apply((kernel, dtype, constants), *inputs)."""
        raise NotImplementedError

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        """The result's dtype, and the checked and promoted inputs."""
        raise NotImplementedError

    def lifted(self, options: tuple, *inputs: Any) -> Tensor | None:
        """The op in the compute type, where a Python number leaves the range of the half type
        beside it: torch never rounds such a number to that."""
        return None

    def remember(self, dtype: torch.dtype, *options: Any) -> Constants:
        """The constants, from the cache."""
        try:
            return self.remembered(dtype, *options)
        except TypeError:  # an option that cannot be hashed: the check names it
            return self.constants(dtype, *options)

    def general(self, options: tuple, *inputs: Any) -> Tensor:
        """The op on whatever the user gave."""
        lifted = self.lifted(options, *inputs)
        if lifted is not None:
            return lifted
        dtype, tensors = self.operands(*inputs)
        derive = self.constants if is_compiling() else self.remember
        constants = derive(dtype, *options)
        if transforms_active():
            return self.formulas.composite(dtype, constants, tensors)
        kernel = obstacle(*tensors) is None
        return self.function.apply((kernel, dtype, constants), *tensors)


class Unary(Elementwise):
    """An op of one input."""

    def __call__(self, options: tuple, x: Any) -> Tensor:
        if obstacle(x) is not None:
            return self.general(options, x)
        dtype = x.dtype
        constants = self.remember(dtype, *options)
        if x.requires_grad and torch.is_grad_enabled():
            return self.apply((True, dtype, constants), x)
        return self.kernel(x, *constants)

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        (x,) = inputs
        x = as_floating(self.public, x)
        return x.dtype, (x,)

    def make_function(self) -> type[torch.autograd.Function]:
        op, formulas = self, self.formulas

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, call: Call, x: Tensor) -> Tensor:
                ctx.call = kernel, dtype, constants = call
                result = (
                    op.kernel(x, *constants) if kernel else formulas.forward(dtype, constants, (x,))
                )
                ctx.save_for_backward(
                    x if formulas.save is None else formulas.save(x, result, *constants)
                )
                return result

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
                kernel, dtype, constants = ctx.call
                (saved,) = ctx.saved_tensors
                if kernel and _first_order(grad):
                    return None, op.kernel_backward(grad, saved, *constants)
                return None, *formulas.backward(dtype, constants, grad, (saved,), (True,))

        return Function


class Binary(Elementwise):
    """An op of two inputs that broadcast. The first is kept only for the second's gradient."""

    def __call__(self, options: tuple, x: Any, y: Any) -> Tensor:
        if type(y) in (float, int) and obstacle(x) is None:
            y = torch.tensor(y, dtype=COMPUTE[x.dtype], device=_CPU)  # a copy to a GPU would wait
        elif obstacle(x, y) is not None or x.dtype is not y.dtype:
            return self.general(options, x, y)
        dtype = x.dtype
        constants = self.remember(dtype, *options)
        try:
            if (x.requires_grad or y.requires_grad) and torch.is_grad_enabled():
                return self.apply((True, dtype, constants), x, y)
            return self.kernel(x, y, *constants)
        except RuntimeError:
            self._check_shapes(x, y)
            raise

    def lifted(self, options: tuple, *inputs: Any) -> Tensor | None:
        x, y = inputs
        if not (beyond_half(x, y) or beyond_half(y, x)):
            return None
        dtype = (x if isinstance(x, Tensor) else y).dtype
        wide = (widened(v) if isinstance(v, Tensor) else v for v in (x, y))
        return narrowed(self(options, *wide), dtype)

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        x, y = inputs
        two_numbers = isinstance(x, Real) and isinstance(y, Real)
        for value in inputs:
            if two_numbers or not isinstance(value, Real):
                check(self.public, value)
        self._check_devices(x, y)
        self._check_shapes(x, y)
        dtype = _result_type(x, y)
        device = next(value.device for value in (y, x) if isinstance(value, Tensor))
        x, y = (
            self._operand(x, dtype, dtype, device),
            self._operand(y, dtype, COMPUTE[dtype], device),
        )
        # The compiler takes no tensor twice into one Function.
        return dtype, (x, y.view_as(y) if x is y and is_compiling() else y)

    def _check_shapes(self, x: Any, y: Any) -> None:
        shapes = [tuple(value.shape) for value in (x, y) if isinstance(value, Tensor)]
        sizes = zip(*(reversed(shape) for shape in shapes), strict=False)
        if len(shapes) == 2 and any(a != b and 1 not in (a, b) for a, b in sizes):
            raise RuntimeError(
                f"{self.public}: shapes {shapes[0]} and {shapes[1]} do not broadcast; from the "
                "last dimension on, two sizes must be equal or one of them 1"
            ) from None

    def _check_devices(self, x: Any, y: Any) -> None:
        """A 0-dim CPU tensor goes with every device, as in torch."""
        devices = {
            tensor.device
            for tensor in (x, y)
            if isinstance(tensor, Tensor) and not (tensor.dim() == 0 and tensor.is_cpu)
        }
        if len(devices) > 1:
            raise RuntimeError(
                f"{self.public}: expected both tensors on one device, got {x.device} and "
                f"{y.device}; move one with .to(...)"
            )

    def _operand(
        self, value: Any, dtype: torch.dtype, single: torch.dtype, device: torch.device
    ) -> Tensor:
        """In the result's dtype; a single denominator may keep the compute type, as in torch."""
        if not isinstance(value, Tensor):
            return torch.tensor(value, dtype=single, device=device)
        return value.to(single if value.dim() == 0 and value.dtype is not dtype else dtype)

    def make_function(self) -> type[torch.autograd.Function]:
        op, formulas = self, self.formulas

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, call: Call, x: Tensor, y: Tensor) -> Tensor:
                ctx.call = kernel, dtype, constants = call
                result = (
                    op.kernel(x, y, *constants)
                    if kernel
                    else formulas.forward(dtype, constants, (x, y))
                )
                ctx.shapes = x.shape, y.shape
                ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, y)
                return result

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
                kernel, dtype, constants = ctx.call
                _, *needs = ctx.needs_input_grad
                if kernel and _first_order(grad):
                    dx, dy = op.kernel_backward(grad, *ctx.saved_tensors, *constants, *needs)
                else:
                    dx, dy = formulas.backward(dtype, constants, grad, ctx.saved_tensors, needs)
                of_x, of_y = ctx.shapes
                return (
                    None,
                    _summed(dx, of_x) if needs[0] else None,
                    _summed(dy, of_y) if needs[1] else None,
                )

        return Function


def _result_type(x: Any, y: Any) -> torch.dtype:
    if is_compiling():  # torch.result_type cannot be traced; this quotient is dropped again
        return torch.true_divide(x, y).dtype
    dtype = torch.result_type(x, y)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _first_order(grad: Tensor) -> bool:
    """A plain backward, which nobody differentiates again."""
    return not torch.is_grad_enabled() and is_plain(grad)


def _summed(grad: Tensor, shape: torch.Size) -> Tensor:
    """The sum over what broadcasting repeated, saturated like its terms: two of the largest number
    are no infinity (G2)."""
    if grad.shape == shape:
        return grad
    if readable(grad):
        total = grad.sum_to_size(shape)
        if total.isfinite().all():
            return total
    exact = grad.dtype is torch.float64  # of the others no sum leaves the range of a double
    scale = 2.0 ** -math.ceil(math.log2(max(grad.numel(), 1))) if exact else 1.0
    wide = _sum_to(grad * scale if exact else grad, shape)
    limit = torch.finfo(grad.dtype).max * scale
    held = torch.where(wide.abs() < math.inf, wide.clamp(-limit, limit), wide)
    return (held / scale).to(grad.dtype)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """x.double().sum_to_size(shape), without a copy of x in double."""
    lead = x.dim() - len(shape)
    dims = [i for i in range(x.dim()) if i < lead or (shape[i - lead] == 1 and x.shape[i] != 1)]
    return x.sum(dims, keepdim=True, dtype=torch.float64).reshape(shape)
