"""What the elementwise ops without a kernel share: torch's own op where it is right, else formulas.

On plain CPU tensors in eager mode a look at the result of torch's own op tells whether anything was
guarded or overflowed. If nothing did, that is the value, and the gradient is tried without masks in
the same way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._route import readable, transforms_active
from . import _elementwise
from ._elementwise import Elementwise, _summed
from ._formulas import Formula, Formulas
from ._options import COMPUTE, Constants
from ._row_formulas import all_finite


class Quick(NamedTuple):
    """What may be tried first.

    value         (options, *inputs) -> torch's own value; None if options make it another function
    gradients     as those of the formulas, without masks: right where they and the value are finite
    keeps_result  they take the result in place of the inputs, and are right wherever value is
    """

    value: Callable[..., Tensor | None]
    gradients: Sequence[Formula]
    keeps_result: bool = False


def no_constants(dtype: torch.dtype) -> Constants:
    """Of an op without any."""
    return ()


def overflows(*constants: float) -> bool:
    """Finite inputs can give a value beyond the dtype's range, whatever the constants."""
    return True


def bounded(slope: Callable[..., Tensor], limit: float, *inputs: Tensor) -> Tensor:
    """slope(*inputs), which saturates as the value does, since what follows often divides by that.
    Of an infinite input it stays as it is; where it saturates it is constant."""
    with torch.no_grad():
        exact = slope(*inputs)
        finite = functools.reduce(torch.logical_and, [x.abs() < math.inf for x in inputs])
        over = finite & (exact.abs() > limit)
    inside = slope(*[torch.where(over, 1.0, x) for x in inputs])
    return torch.where(over, exact.clamp(-limit, limit), inside)


def usual(op: Callable[..., Tensor], *options: Any) -> Callable[..., Tensor | None]:
    """torch's own op, for a call with these options only: the default ones."""
    return lambda given, *inputs: op(*inputs) if given == options else None


class _Kernelless(Elementwise):
    """An op with formulas only. Its Function: apply((value or None, dtype, constants), *inputs)."""

    def __init__(
        self, public: str, constants: Callable[..., Constants], formulas: Formulas, quick: Quick
    ):
        self.quick = quick
        self.with_result = Formulas(
            formulas.value, quick.gradients, formulas.overflows, divides=False
        )
        super().__init__(public, public, constants, formulas)

    def _take_kernels(self) -> None:
        """There are none."""

    def __call__(self, options: tuple, *inputs: Any) -> Tensor:
        if _simple(inputs):
            return self._plain(options, inputs[0].dtype, inputs)
        lifted = self.lifted(options, *inputs)
        if lifted is not None:
            return lifted
        dtype, tensors = self.operands(*inputs)
        if transforms_active():
            return self.formulas.composite(dtype, self.remember(dtype, *options), tensors)
        if all(map(readable, tensors)):
            return self._plain(options, dtype, tensors)
        constants = (self.constants if is_compiling() else self.remember)(dtype, *options)
        if is_compiling() and not _differentiated(tensors):
            return self.formulas.forward(dtype, constants, tensors)
        return self.function.apply((None, dtype, constants), *tensors)

    def _plain(self, options: tuple, dtype: torch.dtype, tensors: Sequence[Tensor]) -> Tensor:
        """On tensors that may be read: torch's own value, if it is right."""
        known = self.quick.value(options, *[tensor.detach() for tensor in tensors])
        if known is not None and not all_finite(known):
            known = None
        if known is not None and not _differentiated(tensors):
            return known
        return self.apply((known, dtype, self.remember(dtype, *options)), *tensors)

    def gradients(
        self,
        call: tuple[bool, torch.dtype, Constants],
        grad: Tensor,
        saved: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        known, dtype, constants = call
        formulas = self.with_result if known and self.quick.keeps_result else self.formulas
        if not known or torch.is_grad_enabled() or not readable(grad):
            return formulas.backward(dtype, constants, grad, saved, needs)
        tried = self._tried(dtype, constants, grad, saved, needs)
        again = [need and value is None for need, value in zip(needs, tried, strict=True)]
        if any(again):
            exact = formulas.backward(dtype, constants, grad, saved, again)
            tried = [x if value is None else value for x, value in zip(exact, tried, strict=True)]
        return tried

    def _tried(
        self,
        dtype: torch.dtype,
        constants: Constants,
        grad: Tensor,
        saved: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """The gradients without masks, where they are wanted and right."""
        wide = [tensor.to(COMPUTE[dtype]) for tensor in (grad, *saved)]
        values: list[Tensor | None] = []
        for formula, needed in zip(self.quick.gradients, needs, strict=True):
            value = formula(*wide, *constants).to(dtype) if needed else None
            values.append(value if value is not None and all_finite(value) else None)
        return values

    def make_function(self) -> type[torch.autograd.Function]:
        op = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, call: Any, *inputs: Tensor) -> Tensor:
                known, dtype, constants = call
                ctx.call = known is not None, dtype, constants
                ctx.shapes = [tensor.shape for tensor in inputs]
                if known is None:
                    ctx.save_for_backward(*inputs)
                    return op.formulas.forward(dtype, constants, inputs)
                ctx.save_for_backward(*((known,) if op.quick.keeps_result else inputs))
                return known

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
                grads = op.gradients(ctx.call, grad, ctx.saved_tensors, ctx.needs_input_grad[1:])
                pairs = zip(grads, ctx.shapes, strict=True)
                return None, *(g if g is None else _summed(g, shape) for g, shape in pairs)

        return Function


class Unary(_Kernelless, _elementwise.Unary):
    """An op of one input."""


class Binary(_Kernelless, _elementwise.Binary):
    """An op of two inputs that broadcast."""

    def _operand(
        self, value: Any, dtype: torch.dtype, single: torch.dtype, device: torch.device
    ) -> Tensor:
        """In the result's dtype, as torch does for all but a division."""
        return super()._operand(value, dtype, dtype, device)


def _simple(inputs: Sequence[Any]) -> bool:
    """Plain tensors of one dtype that the op takes as they are, and whose values may be read."""
    if not all(map(readable, inputs)):
        return False
    first, last = inputs[0], inputs[-1]
    nested = first.is_nested or last.is_nested
    return first.dtype in COMPUTE and last.dtype is first.dtype and not nested


def _differentiated(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
