"""What the elementwise ops share: argument checks, the autograd Function, saturation.

An op brings torch formulas of its value and of each gradient. They get tensors of the compute type
(float32 for half types) and the op's constants, may overflow, and mask by the input in the
double-where way, so that they can themselves be differentiated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .. import _extension
from .._route import is_plain, plain_apply, raw, transforms_active, why_not_kernel

COMPUTE = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
Formula = Callable[..., Tensor]
Constants = tuple[float, ...]
Call = tuple[bool, torch.dtype, Constants]  # kernel or formulas, the result's dtype, constants


# --- arguments ---------------------------------------------------------------------------------


def check(op: str, tensor: Any) -> None:
    """A clear TypeError for everything the op cannot take."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{op}: expected a torch.Tensor, got {type(tensor).__name__}; "
            "wrap it in torch.as_tensor(...)"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout}"
        kind = "nested" if tensor.is_nested else kind
        raise TypeError(
            f"{op}: expected a dense strided tensor, got a {kind} one; "
            "convert it first (to_dense, dequantize or to_padded_tensor)"
        )
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in COMPUTE):
        raise TypeError(
            f"{op}: expected float64, float32, float16, bfloat16 or an integer dtype, "
            f"got {tensor.dtype}; convert it first, for example with .to(torch.float32)"
        )


def as_floating(op: str, tensor: Any) -> Tensor:
    """The checked tensor; integers and bools become the default dtype, as in torch."""
    check(op, tensor)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def number(op: str, name: str, value: Any) -> float:
    """A finite Python number as a float."""
    if isinstance(value, Tensor) or not isinstance(value, Real):
        raise TypeError(f"{op}: {name} must be a Python number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{op}: {name} must be finite, so that the result is; got {value!r}")
    return float(value)


def rounded(value: float, dtype: torch.dtype) -> float:
    """value rounded to the nearest number of dtype, ties to even, in plain arithmetic."""
    digits = 2 - math.frexp(torch.finfo(dtype).eps)[1]
    unit = max(math.frexp(value)[1] - digits, math.frexp(smallest(dtype))[1] - 1)
    return value if dtype is torch.float64 else math.ldexp(round(math.ldexp(value, -unit)), unit)


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive (subnormal) number of dtype."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def positive(op: str, name: str, value: Any, dtype: torch.dtype) -> float:
    """A bound: a number above 0 that is still above 0 and finite in the compute type."""
    compute = COMPUTE[dtype]
    bound = value if isinstance(value, Tensor) or not isinstance(value, Real) else float(value)
    if not isinstance(bound, float):
        return number(op, name, value)
    if not 0 < bound < math.inf or not 0 < rounded(bound, compute) <= torch.finfo(compute).max:
        raise ValueError(
            f"{op}: {name} must be positive and finite in {compute} "
            f"(the compute type of {dtype}), got {value!r}"
        )
    return rounded(bound, compute)


def one_sided(
    op: str,
    dtype: torch.dtype,
    eps: float | None,
    fill: float | None,
    extend: str,
    value: Callable[[float], float],
    slope: Callable[[float], float],
) -> tuple[float, float, float]:
    """Constants (bound, below, slope) of an op guarded where x < bound or x <= 0.

    There the op is below + slope * (x - bound). Without eps the bound is 0 and below is the
    op's value at the smallest positive number of the dtype, value(tiny).
    """
    if extend not in ("clamp", "linear"):
        raise ValueError(f"{op}: extend must be 'clamp' or 'linear', got {extend!r}")
    linear = extend == "linear"
    if linear and fill is not None:
        raise ValueError(
            f"{op}: fill={fill!r} and extend='linear' both say what happens below the bound; "
            "give one of them"
        )
    if linear and eps is None:
        raise ValueError(f"{op}: extend='linear' needs eps, the point where the tangent starts")
    bound = 0.0 if eps is None else positive(op, "eps", eps, dtype)
    if fill is not None:
        return bound, number(op, "fill", fill), 0.0
    tangent = min(slope(bound), torch.finfo(COMPUTE[dtype]).max) if linear else 0.0
    return bound, value(bound or smallest(dtype)), tangent


# --- saturation --------------------------------------------------------------------------------


def _finite(tensors: Sequence[Tensor]) -> Tensor:
    each = [tensor.abs() <= torch.finfo(tensor.dtype).max for tensor in tensors]
    return functools.reduce(torch.logical_and, each)


def _over(value: Tensor, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Where a finite input gave a value beyond the range of dtype."""
    return _finite(inputs) & (value.abs() > torch.finfo(dtype).max)


def _limit(like: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    return torch.full_like(like, limit).copysign(like)


def _ones_where(condition: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(condition, 1.0, tensor) for tensor in tensors]


def _gradient(
    formula: Formula, grad: Tensor, used: Sequence[Tensor], constants: Constants, dtype: torch.dtype
) -> Tensor:
    """The formula, saturated (G2), and zero where the upstream gradient is (G1).

    Where it may be differentiated again, elements that are replaced do not reach the formula:
    the where trap would make their second derivative NaN.
    """
    value = formula(grad, *used, *constants)
    over = _over(value, [grad, *used], dtype)
    zero = (grad == 0) & ~_finite(used)
    limit = _limit(value.detach(), dtype)
    if torch.is_grad_enabled():
        value = formula(*_ones_where(over | zero, [grad, *used]), *constants)
    return torch.where(zero, 0.0, torch.where(over, limit, value))


# --- the op ------------------------------------------------------------------------------------


class Elementwise:
    """One op: its kernel, its torch formulas and the autograd Function over both.

    name       of the raw ops, torch.ops.safeops.<name> and <name>_backward
    public     what users call it, for errors
    constants  (dtype, *options) -> the numbers that kernel and formulas take; checks the options
    value      formula of the value, (*inputs, *constants)
    gradients  one formula an input, (grad, *those saved tensors that it uses, *constants)
    uses       for each gradient, which of the saved tensors it takes
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
        save: Formula | None = None,
    ):
        self.name, self.public, self.constants = name, public, constants
        self.value, self.gradients, self.save = value, gradients, save
        self.remembered = functools.lru_cache(maxsize=256)(constants)
        self.function = type(public.title().replace("_", ""), (self.make_function(),), {})
        self.apply = plain_apply(self.function)
        if _extension.module is not None:
            self.kernel, self.kernel_backward = raw(name), raw(f"{name}_backward")

    def make_function(self) -> type[torch.autograd.Function]:
        """The autograd Function: apply((kernel, dtype, constants), *inputs)."""
        raise NotImplementedError

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        """The result's dtype, and the checked and promoted inputs."""
        raise NotImplementedError

    def general(self, options: tuple, *inputs: Any) -> Tensor:
        """The op on whatever the user gave."""
        dtype, tensors = self.operands(*inputs)
        constants = self.constants(dtype, *options)
        if transforms_active():
            return self.composite(dtype, constants, tensors)
        kernel = why_not_kernel(*tensors) is None
        return self.function.apply((kernel, dtype, constants), *tensors)

    def forward(self, dtype: torch.dtype, constants: Constants, inputs: Sequence[Tensor]) -> Tensor:
        """The value by the torch formula."""
        wide = [tensor.to(COMPUTE[dtype]) for tensor in inputs]
        value = self.value(*wide, *constants)
        return torch.where(_over(value, wide, dtype), _limit(value, dtype), value).to(dtype)

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
        return [
            _gradient(formula, grad, [wide[i] for i in used], constants, dtype).to(dtype)
            if needed
            else None
            for formula, used, needed in zip(self.gradients, self.uses, needs, strict=True)
        ]

    def composite(self, dtype: torch.dtype, constants: Constants, inputs: Sequence[Tensor]) -> Tensor:
        """The value as differentiable operations; where it saturates, a tangent of value 0
        carries the derivative of the unsaturated function (V2)."""
        wide = [tensor.to(COMPUTE[dtype]) for tensor in inputs]
        fixed = [tensor.detach() for tensor in wide]
        value = self.value(*fixed, *constants)
        over = _over(value, fixed, dtype)
        inside = self.value(*_ones_where(over, wide), *constants)
        outside = _limit(value, dtype) + self._tangent(dtype, constants, wide, over)
        return torch.where(over, outside, inside).to(dtype)

    def _tangent(
        self, dtype: torch.dtype, constants: Constants, wide: Sequence[Tensor], over: Tensor
    ) -> Tensor:
        kept = _ones_where(~over, wide)
        fixed = [tensor.detach() for tensor in kept]
        saved = fixed
        if self.save is not None:
            saved = [self.save(*fixed, self.value(*fixed, *constants), *constants)]
        slopes = self.backward(dtype, constants, torch.ones_like(fixed[0]), saved, [True] * len(fixed))
        terms = [(t - f) * s.detach() for t, f, s in zip(kept, fixed, slopes, strict=True)]
        return functools.reduce(torch.add, terms)


class Unary(Elementwise):
    """An op of one input."""

    def __call__(self, options: tuple, x: Any) -> Tensor:
        if why_not_kernel(x) is not None:
            return self.general(options, x)
        dtype = x.dtype
        try:
            constants = self.remembered(dtype, *options)
        except TypeError:  # an option that cannot be hashed: the check names it
            constants = self.constants(dtype, *options)
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
            def forward(ctx, call, x):
                ctx.call = kernel, dtype, constants = call
                result = op.kernel(x, *constants) if kernel else op.forward(dtype, constants, (x,))
                ctx.save_for_backward(x if op.save is None else op.save(x, result, *constants))
                return result

            @staticmethod
            def backward(ctx, grad):
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
        if why_not_kernel(x, y) is not None or x.dtype is not y.dtype:
            return self.general(options, x, y)
        dtype = x.dtype
        try:
            constants = self.remembered(dtype, *options)
        except TypeError:  # an option that cannot be hashed: the check names it
            constants = self.constants(dtype, *options)
        if (x.requires_grad or y.requires_grad) and torch.is_grad_enabled():
            return self.apply((True, dtype, constants), x, y)
        return self.kernel(x, y, *constants)

    def operands(self, *inputs: Any) -> tuple[torch.dtype, tuple[Tensor, ...]]:
        """A scalar second operand keeps the compute type, as in torch."""
        for value in inputs:
            if isinstance(value, Tensor) or not any(isinstance(v, Tensor) for v in inputs):
                check(self.public, value)
            else:
                number(self.public, "an operand that is no tensor", value)
        dtype = torch.result_type(*inputs)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        x, y = inputs
        return dtype, (_operand(x, dtype, dtype), _operand(y, dtype, COMPUTE[dtype]))

    def make_function(self) -> type[torch.autograd.Function]:
        op = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, call, x, y):
                ctx.call = kernel, dtype, constants = call
                result = op.kernel(x, y, *constants) if kernel else op.forward(dtype, constants, (x, y))
                ctx.shapes = x.shape, y.shape
                ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, y)
                return result

            @staticmethod
            def backward(ctx, grad):
                kernel, dtype, constants = ctx.call
                _, *needs = ctx.needs_input_grad
                if kernel and _first_order(grad):
                    grads = op.kernel_backward(grad, *ctx.saved_tensors, *constants, *needs)
                else:
                    grads = op.backward(dtype, constants, grad, ctx.saved_tensors, needs)
                return None, *_reduced(grads, ctx.shapes, needs)

        return Function


def _operand(value: Any, dtype: torch.dtype, scalar: torch.dtype) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=scalar)
    return value.to(scalar if value.dim() == 0 and value.dtype is not dtype else dtype)


def _first_order(grad: Tensor) -> bool:
    """A plain backward, which nobody differentiates again."""
    return not torch.is_grad_enabled() and is_plain(grad)


def _reduced(
    grads: Sequence[Tensor | None], shapes: Sequence[torch.Size], needs: Sequence[bool]
) -> list[Tensor | None]:
    """The wanted gradients, summed over what broadcasting repeated."""
    return [
        (grad if grad.shape == shape else grad.sum_to_size(shape)) if needed else None
        for grad, shape, needed in zip(grads, shapes, needs, strict=True)
    ]
