"""The torch formulas of an op: what the kernels must match, and what runs where they cannot.

An op brings formulas of its value and of each gradient. They get tensors of the compute type
(float32 for half types) and the op's constants, may overflow, and mask by the input in the
double-where way, so that they can themselves be differentiated. Saturation is added here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ._options import COMPUTE, Constants

Formula = Callable[..., Tensor]


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


def _without_steep(
    smooth: Sequence[Tensor], fixed: Sequence[Tensor], slopes: Sequence[Tensor]
) -> list[Tensor]:
    """The inputs, without their derivative where it is infinite, as only that at infinity is."""
    triples = zip(smooth, fixed, slopes, strict=True)
    return [torch.where(_finite([slope]), x, still) for x, still, slope in triples]


def _gradient(
    formula: Formula,
    grad: Tensor,
    used: Sequence[Tensor],
    constants: Constants,
    dtype: torch.dtype,
    divides: bool,
) -> Tensor:
    """The formula, saturated (G2), and zero where the upstream gradient is (G1)."""
    if torch.is_grad_enabled() and not is_compiling():
        return _differentiable_gradient(formula, grad, used, constants, dtype, divides)
    value = formula(grad, *used, *constants)
    finite = _finite([grad, *(used[:-1] if divides else used)])
    value = torch.where(finite, _limited(value, dtype), value)
    return torch.where(grad == 0, 0.0, value)


def _differentiable_gradient(
    formula: Formula,
    grad: Tensor,
    used: Sequence[Tensor],
    constants: Constants,
    dtype: torch.dtype,
    divides: bool,
) -> Tensor:
    """The same value, to be differentiated again: its slope at a zero upstream gradient is kept,
    and elements that are replaced do not reach the formula, since the where trap would make their
    second derivative NaN."""
    with torch.no_grad():
        value = _gradient(formula, grad, used, constants, dtype, divides)
        exact = formula(grad, *used, *constants)
        zero = (grad == 0) & ~_finite([exact, *used])
        replaced = zero | _over(exact, [grad, *used], dtype)
    slope = formula(*_ones_where(replaced, [grad, *used]), *constants)
    with torch.no_grad():
        replaced = replaced | (_finite([value]) & ~_finite([slope]))
        correction = torch.where(_finite([slope, value]), value - slope, 0.0)
    return torch.where(replaced, value, slope + correction)


class Formulas:
    """The formulas of one op.

    value      (*inputs, *constants)
    gradients  one for each input, (grad, *those saved tensors that it uses, *constants)
    overflows  whether finite inputs can give a value beyond the dtype's range, (*constants)
    uses       for each gradient, which of the saved tensors it takes
    save       what is kept for backward if not the inputs, (*inputs, result, *constants)
    divides    the last input is a divisor: infinite, it makes nothing infinite
    """

    def __init__(
        self,
        value: Formula,
        gradients: Sequence[Formula],
        overflows: Callable[..., bool],
        uses: Sequence[Sequence[int]] = ((0,),),
        save: Formula | None = None,
        divides: bool = True,
    ):
        self.value, self.gradients, self.overflows = value, gradients, overflows
        self.uses, self.save, self.divides = uses, save, divides

    def forward(self, dtype: torch.dtype, constants: Constants, inputs: Sequence[Tensor]) -> Tensor:
        """The value by the torch formula."""
        wide = [tensor.to(COMPUTE[dtype]) for tensor in inputs]
        value = self.value(*wide, *constants)
        if self.overflows(*constants):
            finite = _finite(wide[:1] if self.divides else wide)
            value = torch.where(finite, _limited(value, dtype), value)
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
                _gradient(formula, grad, tensors, constants, dtype, self.divides).to(dtype)
                if needed
                else None
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
        if not self.divides:
            smooth = _without_steep(smooth, fixed, slopes)
        # In a product a zero upstream gradient would meet the overflow.
        for slope in slopes[self.divides :]:
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
                _gradient(
                    formula, ones, [saved[i] for i in used], constants, ones.dtype, self.divides
                )
                for formula, used in zip(self.gradients, self.uses, strict=True)
            ]
