"""What was found: one operation, where it is, what went in, and what to do."""

from __future__ import annotations

import linecache
import math
import os
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._reports import in_words


class Source(NamedTuple):
    """A line of code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        """Short, where the file is below the working directory."""
        here = os.getcwd() + os.sep
        return f"{self.file.removeprefix(here)}:{self.line}" if self.file else ""


NOWHERE = Source("", 0, "")


class Counts(NamedTuple):
    """Of the elements of a result."""

    nan: int
    posinf: int
    neginf: int
    numel: int

    def __str__(self) -> str:
        return f"{in_words(self.nan, self.posinf, self.neginf)} of {self.numel}"


@dataclass(frozen=True)
class TensorSummary:
    """What went into an operation. min and max are those of the finite elements, NaN if there are
    none; name is the operation's word for it, with that of the parameter or buffer it is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float
    max: float
    zeros: int
    nan: int
    posinf: int
    neginf: int

    def __str__(self) -> str:
        bad = Counts(self.nan, self.posinf, self.neginf, math.prod(self.shape))
        odd = f", {bad}" if self.nan + self.posinf + self.neginf else ""
        zeros = f", {self.zeros} zeros" if self.zeros else ""
        within = f"in [{self.min:.4g}, {self.max:.4g}]"
        if math.isnan(self.min):
            within = "without a finite element" if math.prod(self.shape) else "empty"
        return f"{self.name}: {self.dtype}{list(self.shape)} {within}{zeros}{odd}"


@dataclass(frozen=True, repr=False)
class Finding:
    """The operation that made the first NaN or infinity of a chain.

    op: torch's name for it, such as ``div`` or, backward, ``DivBackward0``.
    direction: "forward", "backward" or "optimizer".
    module: the dotted path of the module that ran it, "" for the model itself; of a backward
        operation the module of its forward. parameter: the one concerned, or "".
    source: the innermost line outside torch and safeops; of a backward operation that of its
        forward.
    cause: one of `safeops.diagnose.CAUSES`. remedy: the call that prevents it.
    inputs: TensorSummary of each; backward, incoming gradients and what the forward saved.
    counts: NaN, inf and -inf in the result, and its size; index: where the first of them is.
    step: how many forwards of the model ended before. rank: of this process, None without
        torch.distributed.
    called_from: the line of your own program, where `source` is one of an installed library.
    """

    op: str
    direction: str
    module: str
    source: Source
    cause: str
    remedy: str
    inputs: tuple[TensorSummary, ...]
    counts: Counts
    index: tuple[int, ...]
    parameter: str = ""
    step: int = 0
    rank: int | None = None
    called_from: Source = NOWHERE

    def is_like(self, other: Finding) -> bool:
        """The same again, as when a checkpoint computes it again."""
        names = ("op", "direction", "module", "source", "cause", "parameter", "step", "counts")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, for JSON; NaN and infinities stay floats."""
        named = ("source", "counts", "called_from")
        tuples = {name: getattr(self, name)._asdict() for name in named}
        return asdict(self) | tuples | {"index": list(self.index)}

    def summary(self) -> str:
        at = [self.module or "the model"]
        at += [f"parameter {self.parameter}"] if self.parameter else []
        at += [f"step {self.step}"]
        at += [] if self.rank is None else [f"rank {self.rank}"]
        return f"{self.cause}: {self.op} ({self.direction}) in {', '.join(at)}"

    def details(self) -> str:
        own = self.called_from
        lines = [
            f"{self.source}: {self.source.text}",
            *([f"called from {own}: {own.text}"] if own != self.source else []),
            f"out: {self.counts}, first at {list(self.index)}",
            *(f"in:  {one}" for one in self.inputs),
            f"do:  {self.remedy}",
        ]
        return "\n".join(f"  {line}" for line in lines)

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.details()}"

    def __repr__(self) -> str:
        return f"<Finding: {self.summary()}>"


def line_of(file: str, line: int) -> Source:
    return Source(file, line, linecache.getline(file, line).strip())


def counts_of(tensor: Tensor) -> Counts:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    nan, posinf, neginf = (
        int(kind(real).sum()) for kind in (torch.isnan, torch.isposinf, torch.isneginf)
    )
    return Counts(nan, posinf, neginf, tensor.numel())


def first_index(tensor: Tensor) -> tuple[int, ...]:
    """Of the first element that is not finite."""
    place = int((~torch.isfinite(tensor)).reshape(-1).int().argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(place), tensor.shape))


def summary_of(name: str, tensor: Tensor) -> TensorSummary:
    counts = counts_of(tensor)
    finite = tensor[torch.isfinite(tensor)]
    finite = finite.abs() if finite.is_complex() else finite
    least, most = (float(end) for end in finite.aminmax()) if finite.numel() else (math.nan,) * 2
    return TensorSummary(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        min=least,
        max=most,
        zeros=int((tensor == 0).sum()),
        nan=counts.nan,
        posinf=counts.posinf,
        neginf=counts.neginf,
    )
