"""Whether an operation made what is not finite in its result, or took it from its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import causes
from .operations import is_bad, tensors_in
from .taints import MEANT, RAW, TOLD, Origin, Taints

# Infinities may be meant, as in masks: these take them without harm, and hand them on.
_QUIET = {
    *("abs", "add", "sub", "mul", "div", "rsub", "neg", "relu", "hardtanh", "triu", "tril"),
    *("maximum", "minimum", "max", "min", "amax", "amin", "clamp", "clamp_min", "clamp_max"),
    *("cummax", "cummin", "logsumexp", "logaddexp", "logcumsumexp", "log_softmax", "softmax"),
    *("where", "masked_fill", "masked_scatter", "scatter", "scatter_reduce", "index_put"),
    *("sort", "topk", "addcmul", "index_add", "scatter_add", "index_reduce"),
}
_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "rsub", "addcmul", "exp", "expm1", "exp2", "pow", "square"),
    *("cosh", "sinh", "reciprocal", "rsqrt"),
}
_COPIES = {
    *("clone", "to_copy", "copy", "lift", "reshape_copy", "cat", "stack", "repeat", "flip", "roll"),
    *("index", "index_select", "index_copy", "unsafe_index", "gather", "take", "embedding"),
    *("repeat_interleave", "constant_pad_nd", "unsafe_view", "view_copy", "fill", "index_fill"),
}
_UNNAMED = Origin(causes.INPUT)  # it may have become a gradient since
_BIASED = {"baddbmm", "addmm", "addbmm"}  # which add a mask to a product
_FILLS = {
    *("full", "full_like", "new_full", "fill", "scalar_tensor", "masked_fill", "where"),
    *("scatter", "index_put", "index_fill", "masked_scatter", "constant_pad_nd"),
}


class Given(NamedTuple):
    """An input. value: as it was before the operation, None if that was not kept. memory: the
    tensor itself. bad: whether it was not finite before."""

    name: str
    place: int
    value: Tensor | None
    memory: Tensor
    bad: bool


@dataclass(eq=False)
class Event:
    """An operation and what of its result is not finite.

    arguments: by name, without those that it wrote and of which nothing is known. before: copies
    of those that it wrote; overwritten: the others, by name, and whether they were bad before.
    place: of the first of these, in a list of results. traced: whether a gradient goes through it.
    stepping: whether it is part of an optimizer's step. lasting: whether it writes a weight or an
    optimizer's state.
    """

    op: str
    arguments: dict[str, Any]
    before: dict[str, Tensor]
    overwritten: dict[str, list[tuple[Tensor, bool]]]
    results: list[Tensor]
    place: int
    traced: bool
    stepping: bool
    lasting: bool

    @property
    def name(self) -> str:
        return causes.plain_name(self.op)

    @cached_property
    def given(self) -> list[Given]:
        """All tensors that went in."""
        lost = [
            Given(name, i, None, t, bad)
            for name, tensors in self.overwritten.items()
            for i, (t, bad) in enumerate(tensors)
        ]
        seen = [
            (name, i, self.before.get(name, t), t)
            for name, value in self.arguments.items()
            for i, t in enumerate(tensors_in(value))
        ]
        return lost + [Given(*one, is_bad(one[2])) for one in seen]

    def cause(self) -> str:
        """If it is the operation itself."""
        found = causes.forward_cause(self.name, self.arguments | self.before, self.results[0])
        return found or causes.overflow_of(self.results[0].dtype)

    def is_fill(self) -> bool:
        """Whether it writes a number that is not finite."""
        given = causes.has_constant(self.arguments)
        return given and (self.name in _FILLS or (self.name in _QUIET and not self.holds_nan))

    @cached_property
    def holds_nan(self) -> bool:
        return any(bool(tensor.isnan().any()) for tensor in self.results)


class Verdict(NamedTuple):
    """accused: a finding is due. origin: of the result; None if it is the operation itself."""

    accused: bool
    origin: Origin | None


MADE, MADE_ASIDE = Verdict(True, None), Verdict(False, None)
_Outside = Callable[[Tensor], Origin]


def verdict_on(event: Event, taints: Taints, outside_as: _Outside) -> Verdict:
    """outside_as: the origin of what came from outside and is not known yet."""
    found = [origin for one in event.given if (origin := origin_of(one, taints, outside_as))]
    if TOLD in found:
        return Verdict(False, TOLD)
    if not found:
        return _made(event)
    blamed = min(found, key=lambda origin: (origin.meant, origin is MEANT))
    if event.name in _COPIES or (blamed == RAW and event.name in _FILLS):
        return Verdict(False, blamed)
    if event.holds_nan and (blamed.meant or _hides_a_row(event)):
        return MADE
    if blamed.meant and _made_anew(event):
        return MADE
    if _takes(event):
        return Verdict(False, blamed)
    return Verdict(blamed is not MEANT, blamed)


def origin_of(given: Given, taints: Taints, outside_as: _Outside) -> Origin | None:
    """Of what is not finite in an input; None if it is finite."""
    if not given.bad:
        return None
    known = taints.get(given.memory)
    return outside_as(given.memory) if known is None or known == _UNNAMED else known


def _made(event: Event) -> Verdict:
    """Of finite inputs. What no gradient goes through is told only if something is made of it:
    infinities of positions and masks, numbers that stand for what is missing."""
    if event.is_fill():
        return MADE_ASIDE
    aside = not (event.traced or event.lasting or event.holds_nan)
    return MADE_ASIDE if aside else MADE


def _takes(event: Event) -> bool:
    """Infinities without harm, as masks do; beside the graph a NaN, too: it may be sorted out."""
    if event.lasting or (event.holds_nan and event.traced):
        return False
    if event.name in _BIASED:
        return all(given.name == "self" for given in event.given if given.bad)
    return event.name in _QUIET


def _made_anew(event: Event) -> bool:
    """Whether an elementwise result is not finite where all that went in is."""
    values = [given.value for given in event.given if given.value is not None]
    if event.name not in _ELEMENTWISE or not values:
        return False
    finite = reduce(torch.mul, [value.isfinite() for value in values])
    return bool((finite & ~event.results[0].isfinite()).any())


def _hides_a_row(event: Event) -> bool:
    """A softmax in which all is masked: infinities came in, and none of them is to blame."""
    values = [given.value for given in event.given if given.value is not None]
    came_nan = any(bool(value.isnan().any()) for value in values if value.is_floating_point())
    return not came_nan and event.cause() == causes.MASKED
