"""What activations show: units that are off, ends that are reached, sizes that explode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..._reports import TensorStats, counts_of
from .findings import AuditFinding, error, largest_of, rms, warning

MOST = 0.75  # of units: an input of one sign switches off about half of them, at random weights
SAMPLES = 8  # in fewer, units are off by chance
ENDS = 1e-3  # a sigmoid is saturated that close to 0 or 1, a tanh that close to -1 or 1
SCALE = 1e3  # root mean square of a layer's output
NEAR = 8  # that close to the largest number of float16, the next layer may leave its range


class Activation(NamedTuple):
    """One call of a nonlinearity: share of units that are 0 over the batch ("relu") or of
    elements at the ends ("tanh", "sigmoid")."""

    where: str
    kind: str
    share: float
    units: int
    samples: int


def share_of_dead(x: Tensor, channels_first: bool) -> tuple[float, int, int]:
    """A unit is a channel of what convolutions give, else a place in the last dimension."""
    first = x.dim() > 3 or (channels_first and x.dim() == 3)
    units = x.movedim(1 if first else -1, 0).flatten(1)
    alive = (units != 0).any(1)
    return 1 - float(alive.float().mean()), len(units), units.shape[1]


def share_of_ends(x: Tensor, kind: str) -> tuple[float, int, int]:
    ends = x.abs() > 1 - ENDS if kind == "tanh" else (x < ENDS) | (x > 1 - ENDS)
    return float(ends.float().mean()), x.numel() // len(x), len(x)


def of_activations(activations: Sequence[Activation]) -> Iterator[AuditFinding]:
    for one in activations:
        if one.share < MOST or one.samples < SAMPLES:
            continue
        if one.kind == "relu":
            how_bad = f"{one.share:.0%} of {one.units} units are 0 in all {one.samples} samples"
            make = error if one.share == 1 else warning
            yield make(one.where, "dead units", one.share, how_bad, _REVIVE)
        else:
            how_bad = f"{one.share:.0%} of the outputs are within {ENDS:g} of the {one.kind}'s ends"
            yield warning(one.where, "saturated", one.share, how_bad, _SHRINK)


_REVIVE = (
    "standardise the input, nn.init.kaiming_normal_ the layer before it and set its bias to 0, "
    "or use nn.LeakyReLU"
)
_SHRINK = (
    "standardise the input, or nn.init.xavier_uniform_ the layer before it (a normalisation "
    "before it does the same in training)"
)


def of_outputs(rows: Sequence[TensorStats], clean: bool) -> Iterator[AuditFinding]:
    """The first layer whose output is not finite, and the first that explodes, with the worst.
    -inf alone is a mask."""
    bad = [row for row in rows if row.nan or row.posinf]
    if bad and clean:
        remedy = "`with safeops.diagnose.detect(model):` around a step names the operation"
        how_bad = f"{counts_of(bad[0])} of {bad[0].numel} outputs"
        yield error(bad[0].name, "activation", bad[0].bad, how_bad, remedy)
    exploding = [row for row in rows if row.numel > 1 and _explodes(row)]
    large = [row for row in exploding if row.name != "the model"] or exploding  # its last layer's
    if large:
        worst, others = max(large, key=rms), len(large) - 1
        more = f"; {others} more too, worst {worst.name} with {rms(worst):.3g}" * (others > 0)
        how_bad = f"root mean square {rms(large[0]):.3g}, largest {large[0].largest:.3g}{more}"
        remedy = "standardise the input, initialise this layer smaller, or normalise before it"
        yield warning(large[0].name, "activation", rms(large[0]), how_bad, remedy)


def _explodes(row: TensorStats) -> bool:
    near = row.dtype is torch.float16 and row.largest > largest_of(row.dtype) / NEAR
    return near or rms(row) > SCALE
