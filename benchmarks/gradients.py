"""Lists of gradients, checked and clipped; clipped inside an optimizer's step; single tensors.

The bare op is torch's clip_grad_norm_ or, of a check, the loop over isfinite().all() that people
write. Nothing is singular in them. GB/s are those of one read of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from safeops import GradNormClipper, check_finite, clip_grad_norm_, clip_report

from .rows import NO_GRAD, Form, Row, Shapes

NEVER = 1e9  # a max_norm at which nothing is clipped
TORCH_NORM = 0.01  # its error: 0.001 for the 124M of GPT-2 in float32, 0.006 in float16
LOWER = 0.95  # the next max_norm that clips, by the last one: more than that error

# --- what the forms are given ------------------------------------------------------------------


class Step:
    """Parameters with gradients, as before a step; it is by .grad alone that these are held."""

    def __init__(self, *gradients: Tensor):
        self.parameters = [nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.norm = self.max_norm = self.measured()

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def measured(self) -> float:
        return nn.utils.get_total_norm(self.gradients()).item()

    def lower(self) -> float:
        """A max_norm below the norm that the last clip has left, so that every call clips."""
        self.max_norm *= LOWER
        return self.max_norm

    def mend(self) -> None:
        """The gradients have their first norm again: small ones would become subnormal."""
        if self.max_norm < self.norm:
            torch._foreach_mul_(self.gradients(), self.norm / self.measured())
            self.max_norm = self.norm


class Training(Step):
    """And two fused optimizers of the same parameters; the step of one clips by itself."""

    def __init__(self, *gradients: Tensor):
        super().__init__(*gradients)
        for parameter in self.parameters:
            parameter.detach().zero_()
        self.plain, self.clipping = (
            torch.optim.AdamW(self.parameters, fused=True) for _ in range(2)
        )
        self.clipper = GradNormClipper(self.clipping, NEVER)

    def clip_inside(self, max_norm: float) -> Tensor | None:
        self.clipper.max_norm = max_norm
        self.clipping.step()
        return self.clipper.total_norm

    def clip_before(self, max_norm: float) -> Tensor:
        norm = nn.utils.clip_grad_norm_(self.parameters, max_norm)
        self.plain.step()
        return norm


def listed(*tensors: Tensor) -> tuple[list[Tensor]]:
    return (list(tensors),)


def module_of(*tensors: Tensor) -> tuple[nn.Module]:
    """Two parameters a leaf, as layers have a weight and a bias."""
    pairs = (tensors[i : i + 2] for i in range(0, len(tensors), 2))
    return (nn.ModuleList(nn.ParameterList(pair) for pair in pairs),)


# --- forms -------------------------------------------------------------------------------------


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """The loop that people write."""
    bad = 0
    for tensor in tensors:
        if not tensor.isfinite().all():
            bad += 1
    return not bad


NOTHING: Mapping[str, Form] = {
    "safeops": lambda step: clip_grad_norm_(step.parameters, NEVER),
    "torch": lambda step: nn.utils.clip_grad_norm_(step.parameters, NEVER),
}
CLIPPING: Mapping[str, Form] = {
    "safeops": lambda step: clip_grad_norm_(step.parameters, step.lower()),
    "torch": lambda step: nn.utils.clip_grad_norm_(step.parameters, step.lower()),
}
INSIDE: Mapping[str, Form] = {
    "safeops": lambda training: training.clip_inside(training.lower()),
    "torch": lambda training: training.clip_before(training.lower()),
    "never clips": lambda training: training.clip_inside(NEVER),
    "no clipper": lambda training: training.plain.step(),
}
REPORT: Mapping[str, Form] = {
    "safeops": lambda step: clip_report(step.parameters, NEVER).finite,
    "torch": lambda step: all_finite(parameter.grad for parameter in step.parameters),
}
LIST: Mapping[str, Form] = {
    "safeops": lambda tensors: bool(check_finite(tensors)),
    "torch": all_finite,
}
MODULE: Mapping[str, Form] = {
    "safeops": lambda module: bool(check_finite(module)),
    "torch": lambda module: all_finite(module.parameters()),
}
SINGLE: Mapping[str, Form] = {
    "safeops": lambda x: bool(check_finite(x)),
    "torch": lambda x: bool(torch.isfinite(x).all()),
}

# --- rows --------------------------------------------------------------------------------------


def normal(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=generator) for shape in shapes]


class Listed(Row):
    """At another size, every tensor is longer or shorter by the same factor."""

    def shapes_at(self, size: int) -> Shapes:
        factor = size / sum(math.prod(shape) for shape in self.shapes)
        return [(max(1, round(n * factor)), *rest) for n, *rest in self.shapes]


WIDTH, WIDE = 768, 3072
PAIR = ((WIDTH,), (WIDTH,))
BLOCK = (
    *PAIR,
    *((WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)),
    *PAIR,
    *((WIDTH, WIDE), (WIDE,), (WIDE, WIDTH), (WIDTH,)),
)
GPT2, MANY, ONE = "GPT-2 small", "1000 tensors", "1 tensor"
SETS: Mapping[str, Shapes] = {
    GPT2: ((50257, WIDTH), (1024, WIDTH), *BLOCK * 12, *PAIR),
    MANY: ((256,),) * 1000,
    ONE: ((1,),),
}
SIZES = (1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)  # of one tensor
CLIPPED, IN_MODULE = ", clipping", ", module"  # after the name of a set


def row(op: str, name: str, forms: Mapping[str, Form], kind: str = "", **more: Any) -> Row:
    shapes = SETS[name]
    sizes = SIZES if name == ONE else (sum(math.prod(shape) for shape in shapes),)
    layout = name + kind
    return Listed(op, layout, shapes, normal, forms, directions=(NO_GRAD,), sizes=sizes, **more)


def clipped(step: type[Step]) -> dict[str, Any]:
    given = {"given": lambda *gradients: (step(*gradients),), "mend": step.mend}
    return {**given, "tolerance": TORCH_NORM}


def rows_of(name: str) -> list[Row]:
    return [
        row("clip_grad_norm_", name, NOTHING, **clipped(Step)),
        row("clip_grad_norm_", name, CLIPPING, CLIPPED, **clipped(Step)),
        row("clip_report", name, REPORT, **clipped(Step)),
        row("check_finite", name, LIST, given=listed),
        row("check_finite", name, MODULE, IN_MODULE, given=module_of),
    ]


ROWS: tuple[Row, ...] = (
    *rows_of(GPT2),
    *rows_of(MANY),
    row("check_finite", ONE, SINGLE),
    row("GradNormClipper", GPT2, INSIDE, CLIPPED, **clipped(Training)),
)
