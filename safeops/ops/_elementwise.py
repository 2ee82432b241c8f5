"""What the elementwise ops share: the autograd Function over kernel and formulas, saturation.

An op brings torch formulas of its value and of each gradient. They get tensors of the compute type
(float32 for half types) and the op's constants, may overflow, and mask by the input in the
double-where way, so that they can themselves be differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import _extension
from .._route import is_plain, plain_apply, raw, register_fakes, transforms_active, why_not_kernel
from ._options import COMPUTE, Constants, as_floating, check

Formula = Callable[..., Tensor]
Call = tuple[bool, torch.dtype, Constants]  # kernel or formulas, the result's dtype, constants


def _finite(tensors: Sequence[Tensor]) -> Tensor:
    each = [tensor.abs() <= torch.finfo(tensor.dtype).max for tensor in tensors]
    return functools.reduce(torch.logical_and, each)


def _over(value: Tensor, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Where a finite input gave a value beyond the range of dtype."""
    return _finite(inputs) & (value.abs() > torch.finfo(dtype).max)


def _limited(value: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    with torch.no_grad():
        return value.clamp(-limit, limit)


def _ones_where(condition: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(condition, 1.0, tensor) for tensor in tensors]


def _differentiable(wide: Sequence[Tensor], fixed: Sequence[Tensor]) -> list[Tensor]:
    """Each input, without its derivative where it is NaN or another one is not finite."""
    chosen = []
    for i, tensor in enumerate(wide):
        cut = fixed[i] != fixed[i]
        for j, other in enumerate(fixed):
            cut = cut if i == j else cut | ~_finite([other])
        chosen.append(torch.where(cut, fixed[i], tensor))
    return chosen


def _gradient(
    formula: Formula, grad: Tensor, used: Sequence[Tensor], constants: Constants, dtype: torch.dtype
) -> Tensor:
    """The formula, saturated (G2), and zero where the upstream gradient is (G1)."""
    value = formula(grad, *used, *constants)
    if torch.is_grad_enabled() and not is_compiling():
        return _differentiable_gradient(formula, value, grad, used, constants, dtype)
    # The last operand is a divisor: infinite, it gives 0.
    value = torch.where(_finite([grad, *used[:-1]]), _limited(value, dtype), value)
    return torch.where(grad == 0, 0.0, value)


def _differentiable_gradient(
    formula: Formula,
    value: Tensor,
    grad: Tensor,
    used: Sequence[Tensor],
    constants: Constants,
    dtype: torch.dtype,
) -> Tensor:
    """The same, to be differentiated again: its slope at a zero upstream gradient is kept, and
    elements that are replaced do not reach the formula, since the where trap would make their
    second derivative NaN."""
    over = _over(value, [grad, *used], dtype)
    zero = ((grad == 0) & ~_finite(used)) | (_finite([grad, *used]) & (value != value))
    safe = formula(*_ones_where(over | zero, [grad, *used]), *constants)
    return torch.where(zero, 0.0, torch.where(over, _limited(value, dtype), safe))


class Elementwise:
    """One op: its kernel, its torch formulas and the autograd Function over both.

    name       of the raw ops, torch.ops.safeops.<name> and <name>_backward
    public     what users call it, for errors
    constants  (dtype, *options) -> the numbers that kernel and formulas take; checks the options
    value      formula of the value, (*inputs, *constants)
    gradients  one formula an input, (grad, *those saved tensors that it uses, *constants)
    uses       for each gradient, which of the saved tensors it takes
    overflows  whether finite inputs can give a value beyond the dtype's range, (*constants)
    save       what is kept for backward if not the inputs, (*inputs, result, *constants)
    """

    uses: Sequence[Sequence[int]] = ((0,),)

    def __init__(
        self,
        name: str,
        public: str,
        constants: Callable[..., Constants],
        value: Formula,
        gradients: Sequence[Formula],
        overflows: Callable[..., bool],
        save: Formula | None = None,
    ):
        self.name, self.public, self.constants = name, public, constants
        self.value, self.gradients = value, gradients
        self.overflows, self.save = overflows, save
        self.remembered = functools.lru_cache(maxsize=256)(constants)
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
            register_fakes(self.name, len(self.gradients))

    def make_function(self) -> type[torch.autograd.Function]:
        """The autograd Function: apply((kernel, dtype, constants), *inputs)."""
        raise NotImplementedError

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        """The result's dtype, and the checked and promoted inputs."""
        raise NotImplementedError

    def remember(self, dtype: torch.dtype, *options: Any) -> Constants:
        """The constants, from the cache."""
        try:
            return self.remembered(dtype, *options)
        except TypeError:  # an option that cannot be hashed: the check names it
            return self.constants(dtype, *options)

    def general(self, options: tuple, *inputs: Any) -> Tensor:
        """The op on whatever the user gave."""
        dtype, tensors = self.operands(*inputs)
        derive = self.constants if is_compiling() else self.remember
        constants = derive(dtype, *options)
        if transforms_active():
            return self.composite(dtype, constants, tensors)
        kernel = why_not_kernel(*tensors) is None
        return self.function.apply((kernel, dtype, constants), *tensors)

    def forward(self, dtype: torch.dtype, constants: Constants, inputs: Sequence[Tensor]) -> Tensor:
        """The value by the torch formula."""
        wide = [tensor.to(COMPUTE[dtype]) for tensor in inputs]
        value = self.value(*wide, *constants)
        if self.overflows(*constants):
            value = torch.where(_finite(wide[:1]), _limited(value, dtype), value)
        return value.to(dtype)

    def backward(
        self,
        dtype: torch.dtype,
        constants: Constants,
        grad: Tensor,
        saved: Sequence[Tensor | None],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """The gradients by the torch formulas, of the result's shape."""
        wide = [None if tensor is None else tensor.to(COMPUTE[dtype]) for tensor in saved]
        grad = grad.to(COMPUTE[dtype])
        grads: list[Tensor | None] = []
        for formula, used, needed in zip(self.gradients, self.uses, needs, strict=True):
            tensors = [tensor for tensor in (wide[i] for i in used) if tensor is not None]
            grads.append(
                _gradient(formula, grad, tensors, constants, dtype).to(dtype) if needed else None
            )
        return grads

    def composite(
        self, dtype: torch.dtype, constants: Constants, inputs: Sequence[Tensor]
    ) -> Tensor:
        """The value as differentiable operations.

        Where it or a derivative overflows, a tangent of value 0 carries the derivative of the
        unsaturated function (V2). A NaN input has no derivative, and an infinite one leaves none
        to the other input: a zero upstream gradient would turn it into NaN (G1).
        """
        wide = [tensor.to(COMPUTE[dtype]) for tensor in inputs]
        fixed = [tensor.detach() for tensor in wide]
        smooth = _differentiable(wide, fixed)
        if not self.overflows(*constants):
            return self.value(*smooth, *constants).to(dtype)
        value, slopes = self.value(*fixed, *constants), self._slopes(constants, fixed)
        over = _over(value, fixed, dtype)
        for slope in slopes[1:]:  # a product: a zero upstream gradient would meet its overflow
            over = over | (_finite(fixed) & (slope.abs() == torch.finfo(slope.dtype).max))
        terms = [
            (torch.where(over, x, 0.0) - torch.where(over, still, 0.0)) * slope
            for x, still, slope in zip(wide, fixed, slopes, strict=True)
        ]
        inside = self.value(*_ones_where(over, smooth), *constants)
        outside = functools.reduce(torch.add, terms) + _limited(value, dtype)
        return torch.where(over, outside, inside).to(dtype)

    def _slopes(self, constants: Constants, fixed: Sequence[Tensor]) -> list[Tensor]:
        """The derivative to each input, by the gradient formulas."""
        saved = fixed
        if self.save is not None:
            saved = [self.save(*fixed, self.value(*fixed, *constants), *constants)]
        ones = torch.ones_like(functools.reduce(torch.add, fixed))
        with torch.no_grad():
            return [
                _gradient(formula, ones, [saved[i] for i in used], constants, ones.dtype)
                for formula, used in zip(self.gradients, self.uses, strict=True)
            ]


class Unary(Elementwise):
    """An op of one input."""

    def __call__(self, options: tuple, x: Any) -> Tensor:
        if why_not_kernel(x) is not None:
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
        op = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, call: Call, x: Tensor) -> Tensor:
                ctx.call = kernel, dtype, constants = call
                result = op.kernel(x, *constants) if kernel else op.forward(dtype, constants, (x,))
                ctx.save_for_backward(x if op.save is None else op.save(x, result, *constants))
                return result

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
                kernel, dtype, constants = ctx.call
                (saved,) = ctx.saved_tensors
                if kernel and _first_order(grad):
                    return None, op.kernel_backward(grad, saved, *constants)
                return None, *op.backward(dtype, constants, grad, (saved,), (True,))

        return Function


class Binary(Elementwise):
    """An op of two inputs that broadcast. The first is kept only for the second's gradient."""

    uses = ((1,), (0, 1))

    def __call__(self, options: tuple, x: Any, y: Any) -> Tensor:
        if type(y) in (float, int) and why_not_kernel(x) is None:
            y = torch.tensor(y, dtype=COMPUTE[x.dtype])
        elif why_not_kernel(x, y) is not None or x.dtype is not y.dtype:
            return self.general(options, x, y)
        dtype = x.dtype
        constants = self.remember(dtype, *options)
        if (x.requires_grad or y.requires_grad) and torch.is_grad_enabled():
            return self.apply((True, dtype, constants), x, y)
        return self.kernel(x, y, *constants)

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        x, y = inputs
        two_numbers = isinstance(x, Real) and isinstance(y, Real)
        for value in inputs:
            if two_numbers or not isinstance(value, Real):
                check(self.public, value)
        self._check_devices(x, y)
        dtype = _result_type(x, y)
        return dtype, (
            self._operand(x, dtype, dtype),
            self._operand(y, dtype, COMPUTE[dtype]),
        )

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

    def _operand(self, value: Any, dtype: torch.dtype, single: torch.dtype) -> Tensor:
        """In the result's dtype; a single number may keep another one (as in torch, the second
        operand keeps the compute type)."""
        if not isinstance(value, Tensor):
            return torch.tensor(value, dtype=single)
        return value.to(single if value.dim() == 0 and value.dtype is not dtype else dtype)

    def make_function(self) -> type[torch.autograd.Function]:
        op = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, call: Call, x: Tensor, y: Tensor) -> Tensor:
                ctx.call = kernel, dtype, constants = call
                result = (
                    op.kernel(x, y, *constants) if kernel else op.forward(dtype, constants, (x, y))
                )
                ctx.shapes = x.shape, y.shape
                ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, y)
                return result

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
                kernel, dtype, constants = ctx.call
                _, *needs = ctx.needs_input_grad
                if kernel and _first_order(grad):
                    grads = op.kernel_backward(grad, *ctx.saved_tensors, *constants, *needs)
                else:
                    grads = op.backward(dtype, constants, grad, ctx.saved_tensors, needs)
                return None, *_reduced(grads, ctx.shapes, needs)

        return Function


def _result_type(x: Any, y: Any) -> torch.dtype:
    if is_compiling():  # torch.result_type cannot be traced; this quotient is dropped again
        return torch.true_divide(x, y).dtype
    dtype = torch.result_type(x, y)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _first_order(grad: Tensor) -> bool:
    """A plain backward, which nobody differentiates again."""
    return not torch.is_grad_enabled() and is_plain(grad)


def _reduced(
    grads: Sequence[Tensor | None], shapes: Sequence[torch.Size], needs: Sequence[bool]
) -> list[Tensor | None]:
    """The wanted gradients, summed over what broadcasting repeated."""
    return [
        grad.sum_to_size(shape) if needed and grad is not None else None
        for grad, shape, needed in zip(grads, shapes, needs, strict=True)
    ]
