"""What log2 and log10 share: logarithms of which only the scale differs from the natural one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, usual
from ._one_sided import continued, one_sided, overflows, regular
from ._options import Constants


def logarithm(name: str, op: Callable[[Tensor], Tensor], base: float) -> Unary:
    """The op safe_<name>, which is log x / log base."""
    scale, public = math.log(base), f"safe_{name}"
    exactly = getattr(math, name)

    def value(x: Tensor, bound: float, below: float, run: float) -> Tensor:
        return continued(op, x, bound, below, run)

    def quick_gradient(grad: Tensor, x: Tensor, *constants: float) -> Tensor:
        return grad / (x * scale)

    def gradient(grad: Tensor, x: Tensor, bound: float, below: float, run: float) -> Tensor:
        inside = regular(x, bound)
        slope = grad / (torch.where(inside, x, 1.0) * scale)
        return torch.where(inside, slope, grad / run if run else 0.0)

    def constants(
        dtype: torch.dtype, eps: float | None, fill: float | None, extend: str
    ) -> Constants:
        info = torch.finfo(dtype)
        lowest = exactly(info.smallest_normal) + exactly(info.eps)
        return one_sided(public, dtype, eps, fill, extend, lowest, exactly, lambda e: e * scale)

    formulas = Formulas(value, (gradient,), overflows, divides=False)
    return Unary(
        public, constants, formulas, Quick(usual(op, None, None, "clamp"), (quick_gradient,))
    )
