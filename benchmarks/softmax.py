"""softmax, log_softmax and logsumexp: along the last dimension, across it, and with a mask.

With a mask the bare op is torch's on masked_fill(~mask, -inf), which gives the same but is NaN in a
row that is masked whole. Double where guards such rows, and rows that are -inf throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

import safeops

from .rows import BACK, INF, ONE_WAY, Form, Inputs, N, Row, Shapes

Op = Callable[..., Tensor]
Mask = Callable[[tuple[int, ...], Generator], Tensor]

# --- forms -------------------------------------------------------------------------------------


def where_guarded(op: Op, fill: float, x: Tensor, dim: int) -> Tensor:
    """torch's op, and fill for the rows that are -inf throughout."""
    ok = (x != -INF).any(dim, keepdim=True)
    value = op(torch.where(ok, x, 0.0), dim)
    return torch.where(ok if value.dim() == x.dim() else ok.squeeze(dim), value, fill)


def plain_forms(ours: Op, theirs: Op, fill: float, dim: int) -> Mapping[str, Form]:
    return {
        "safeops": lambda x: ours(x, dim),
        "torch": lambda x: theirs(x, dim),
        "double where": lambda x: where_guarded(theirs, fill, x, dim),
    }


def masked_forms(ours: Op, theirs: Op, fill: float, dim: int) -> Mapping[str, Form]:
    return {
        "safeops": lambda x, mask: ours(x, dim, mask=mask),
        "torch": lambda x, mask: theirs(x.masked_fill(~mask, -INF), dim),
        "double where": lambda x, mask: where_guarded(
            theirs, fill, x.masked_fill(~mask, -INF), dim
        ),
    }


# op: ours, torch's, and the value of a guarded row
FAMILY: Mapping[str, tuple[Op, Op, float]] = {
    "softmax": (safeops.softmax, torch.softmax, 0.0),
    "log_softmax": (safeops.log_softmax, torch.log_softmax, -INF),
    "logsumexp": (safeops.logsumexp, torch.logsumexp, -INF),
}

# --- inputs ------------------------------------------------------------------------------------


def logits(shape: tuple[int, ...], dim: int, share: float, generator: Generator) -> Tensor:
    """Normal numbers; of the rows along dim a share is -inf throughout."""
    x = torch.randn(shape, generator=generator)
    of_rows = [1 if axis == dim % len(shape) else n for axis, n in enumerate(shape)]
    return x.masked_fill_(torch.rand(of_rows, generator=generator) < share, -INF)


def causal(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.ones(shape, dtype=torch.bool).tril_()


def padding(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """The first keys of each batch, at least a quarter: no row is masked whole."""
    batches, *ones, keys = shape
    lengths = torch.randint(keys // 4, keys + 1, (batches, *ones, 1), generator=generator)
    return torch.arange(keys) < lengths


def inputs(dim: int, mask: Mask | None = None) -> Inputs:
    def tensors(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
        x = logits(shapes[0], dim, share, generator)
        return [x, mask(shapes[1], generator)] if mask else [x]

    return tensors


# --- rows --------------------------------------------------------------------------------------

MASKS: Mapping[str, tuple[tuple[int, ...], Mask]] = {
    "causal": ((256, 256), causal),
    "padding": ((N, 1, 1, 256), padding),
}


@dataclass(frozen=True)
class Variant:
    """A shape, the dimension that the op runs along, and the kind of mask."""

    shape: tuple[int, ...]
    dim: int = -1
    mask: str = ""

    @property
    def scaled(self) -> tuple[int, ...]:
        """The shape with N where it may grow: the first dimension, or the last one."""
        return (N, *self.shape[1:]) if self.dim == -1 else (*self.shape[:-1], N)

    @property
    def layout(self) -> str:
        """As "[N,1024]" and "[64,N] dim 0"."""
        sizes = ",".join("N" if n == N else str(n) for n in self.scaled)
        return (
            f"[{sizes}]" + f" dim {self.dim}" * (self.dim != -1) + f" {self.mask}" * bool(self.mask)
        )

    def row(self, op: str) -> Row:
        forms = masked_forms if self.mask else plain_forms
        shape, mask = MASKS.get(self.mask, (None, None))
        return Row(
            op,
            self.layout,
            (self.scaled, shape) if shape else (self.scaled,),
            inputs(self.dim, mask),
            forms(*FAMILY[op], self.dim),
            compiled=("safeops", "torch"),
            directions=(ONE_WAY, BACK),
            sizes=(math.prod(self.shape),),
            reduces=op == "logsumexp",
        )


LAST = (Variant((4096, 64)), Variant((4096, 1024)), Variant((8, 128000)))
LARGE = (Variant((512, 32000)),)  # the result is larger than the caches
ACROSS = (
    Variant((64, 4096), 0),
    Variant((1024, 4096), 0),
    Variant((32000, 512), 0),
    Variant((128000, 8), 0),
    Variant((8, 128, 4096), 1),
)
MASKED = (Variant((8, 8, 256, 256), mask="causal"), Variant((8, 8, 256, 256), mask="padding"))
ROWS: tuple[Row, ...] = tuple(
    variant.row(op) for op in FAMILY for variant in (*LAST, *LARGE, *ACROSS, *MASKED)
)
