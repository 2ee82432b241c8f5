"""What is measured, as data: a new op is its forms, its inputs and one entry in ROWS.

A contender is a function of the row's tensors. Every row has "safeops" and "torch", the bare op;
the other forms are those people write by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from safeops import finite_clip, safe_div, safe_log, safe_sqrt

Form = Callable[..., Tensor]
Shapes = Sequence[tuple[int, ...]]
INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True, eq=False)
class Row:
    """One op on one layout.

    shapes  of the inputs, for a number of elements of the first
    inputs  float32 tensors of those shapes, a share of whose elements is singular
    forms   the contenders
    """

    op: str
    layout: str
    shapes: Callable[[int], Shapes]
    inputs: Callable[[Shapes, float, Generator], list[Tensor]]
    forms: Mapping[str, Form]

    def tensors(self, size: int, dtype: torch.dtype, singular: float) -> tuple[Tensor, ...]:
        """The inputs, the same in every run."""
        generator = Generator().manual_seed(size)
        return tuple(x.to(dtype) for x in self.inputs(self.shapes(size), singular, generator))


# --- forms -------------------------------------------------------------------------------------


def where_div(x: Tensor, y: Tensor) -> Tensor:
    ok = y != 0
    return torch.where(ok, x / torch.where(ok, y, 1.0), 0.0)


def where_log(x: Tensor) -> Tensor:
    ok = x > 0
    return torch.where(ok, torch.log(torch.where(ok, x, 1.0)), 0.0)


def where_sqrt(x: Tensor) -> Tensor:
    ok = x > 0
    return torch.where(ok, torch.sqrt(torch.where(ok, x, 1.0)), 0.0)


def where_clip(x: Tensor) -> Tensor:
    ok = torch.isfinite(x)
    return torch.where(ok, torch.where(ok, x, 0.0).clamp(-2.0, 2.0), 0.0)


DIV: Mapping[str, Form] = {
    "safeops": lambda x, y: safe_div(x, y),
    "torch": torch.div,
    "double where": where_div,
    "clamp": lambda x, y: x / y.clamp_min(1e-8),
    "plus eps": lambda x, y: x / (y + 1e-8),
}
DIV_SCALAR: Mapping[str, Form] = {
    "safeops": lambda x: safe_div(x, 3.0),
    "torch": lambda x: torch.div(x, 3.0),
}
LOG: Mapping[str, Form] = {
    "safeops": lambda x: safe_log(x),
    "torch": torch.log,
    "double where": where_log,
    "clamp": lambda x: torch.log(x.clamp_min(1e-8)),
    "plus eps": lambda x: torch.log(x + 1e-8),
}
SQRT: Mapping[str, Form] = {
    "safeops": lambda x: safe_sqrt(x),
    "torch": torch.sqrt,
    "double where": where_sqrt,
    "clamp": lambda x: torch.sqrt(x.clamp_min(1e-8)),
    "plus eps": lambda x: torch.sqrt(x + 1e-8),
}
FINITE_CLIP: Mapping[str, Form] = {
    "safeops": lambda x: finite_clip(x, -2.0, 2.0, nan=0.0),
    "torch": lambda x: torch.nan_to_num(x, nan=0.0).clamp(-2.0, 2.0),
    "double where": where_clip,
    "clamp": lambda x: x.clamp(-2.0, 2.0),
}


# --- inputs ------------------------------------------------------------------------------------


def spoiled(x: Tensor, values: Sequence[float], share: float, generator: Generator) -> Tensor:
    """About this share of the elements becomes one of the values."""
    count = int(x.numel() * share) // len(values)
    for value in values:
        x.view(-1)[torch.randint(x.numel(), (count,), generator=generator)] = value
    return x


def positive(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    healthy = [torch.rand(shape, generator=generator) * 4 + 0.01 for shape in shapes]
    return [spoiled(x, (0.0, -1.0), share, generator) for x in healthy]


def quotient(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    """Numerators of any sign; denominators positive, as norms and counts are, or 0."""
    x, *rest = (torch.randn(shape, generator=generator) for shape in shapes)
    return [x, *(spoiled(y.abs_().add_(0.1), (0.0,), share, generator) for y in rest)]


def any_sign(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    healthy = [torch.randn(shape, generator=generator) for shape in shapes]
    return [spoiled(x, (NAN, INF, -INF), share, generator) for x in healthy]


# --- layouts -----------------------------------------------------------------------------------


def flat(operands: int) -> Callable[[int], Shapes]:
    return lambda size: ((size,),) * operands


def over_column(width: int) -> Callable[[int], Shapes]:
    return lambda size: ((max(1, size // width), width), (max(1, size // width), 1))


def over_vector(width: int) -> Callable[[int], Shapes]:
    return lambda size: ((max(1, size // width), width), (width,))


SAME = "contiguous"
ROWS: tuple[Row, ...] = (
    Row("div", SAME, flat(2), quotient, DIV),
    Row("div", "[N,1024]/[N,1]", over_column(1024), quotient, DIV),
    Row("div", "[N,1024]/[1024]", over_vector(1024), quotient, DIV),
    Row("div", "[N,256]/[N,1]", over_column(256), quotient, DIV),
    Row("div", "[N,256]/[256]", over_vector(256), quotient, DIV),
    Row("div", "[N,3]/[3]", over_vector(3), quotient, DIV),
    Row("div", "x / scalar", flat(1), quotient, DIV_SCALAR),
    Row("log", SAME, flat(1), positive, LOG),
    Row("sqrt", SAME, flat(1), positive, SQRT),
    Row("finite_clip", SAME, flat(1), any_sign, FINITE_CLIP),
)
OPS: tuple[str, ...] = tuple(dict.fromkeys(row.op for row in ROWS))
