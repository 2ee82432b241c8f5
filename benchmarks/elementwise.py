"""The elementwise ops beside torch and the usual hand-written forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor

from safeops import finite_clip, safe_div, safe_log, safe_sqrt

from .rows import INF, NAN, Form, N, Row, Shapes

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


# --- rows --------------------------------------------------------------------------------------

SAME = "contiguous"
ONE, TWO = ((N,),), ((N,), (N,))
ROWS: tuple[Row, ...] = (
    Row("div", SAME, TWO, quotient, DIV, compiled=DIV),
    Row("div", "[N,1024]/[N,1]", ((N, 1024), (N, 1)), quotient, DIV),
    Row("div", "[N,1024]/[1024]", ((N, 1024), (1024,)), quotient, DIV),
    Row("div", "[N,256]/[N,1]", ((N, 256), (N, 1)), quotient, DIV),
    Row("div", "[N,256]/[256]", ((N, 256), (256,)), quotient, DIV),
    Row("div", "[N,3]/[3]", ((N, 3), (3,)), quotient, DIV),
    Row("div", "x / scalar", ONE, quotient, DIV_SCALAR),
    Row("log", SAME, ONE, positive, LOG, compiled=LOG),
    Row("sqrt", SAME, ONE, positive, SQRT, compiled=SQRT),
    Row("finite_clip", SAME, ONE, any_sign, FINITE_CLIP, compiled=FINITE_CLIP),
)
BROADCAST = tuple(
    row.layout for row in ROWS if row.layout.startswith(("[N,1024]", "[N,256]", "x /"))
)
