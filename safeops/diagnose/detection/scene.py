"""Where an operation ran, what is known of its tensors, and the finding that tells it."""

from __future__ import annotations

from collections import Counter
from types import FrameType
from typing import NamedTuple

from torch import Tensor, nn

from ..._ranks import own_rank
from ..._where import OUTSIDE, RunningModule, callers
from . import causes
from .backward import NodeEvent
from .findings import Finding, TensorSummary, counts_of, first_index, line_of, summary_of
from .judge import Event, Given
from .names import Known, Names
from .operations import is_bad, is_inexact, values_of
from .remedies import remedy_of
from .taints import TOLD, Origin, Taints

_SHOWN = 8  # inputs of a finding
_MOST_NODES = 200_000


class Place(NamedTuple):
    """A line, the module that ran it, the functions of torch that it called to do so, and the line
    of the user's own program."""

    line: tuple[str, int]
    module: str
    within: tuple[str, ...]
    own: tuple[str, int]

    def in_module_of(self, parameter: str) -> Place:
        return self._replace(module=parameter.rpartition(".")[0])


class Scene:
    """A model, and what has happened to it."""

    def __init__(self, model: nn.Module):
        self.taints, self.names, self.where = Taints(), Names(model), RunningModule(model)
        self.nodes: dict[int, Place | None] = {}  # of the graph, by their number
        self._places: dict[Place, Place] = {}
        self._constants: dict[tuple[str, Place], Origin] = {}

    def place(self) -> Place:
        frame, own, within = callers()
        place = Place(_line(frame), self.where.name, within, _line(own))
        return self._places.setdefault(place, place)

    def note(self, node: int, place: Place | None) -> None:
        """Where a node was made; of very many the oldest are forgotten."""
        self.nodes[node] = place
        if len(self.nodes) > _MOST_NODES:
            for old in list(self.nodes)[: _MOST_NODES // 2]:
                del self.nodes[old]

    def lasts(self, tensors: list[Tensor]) -> bool:
        """Whether one of them is a weight or an optimizer's state."""
        if any(tensor.is_leaf and tensor.requires_grad for tensor in tensors):
            return True
        known = map(self.names.look_up(), tensors) if tensors else ()
        return any(one is not None and one.kind in ("parameter", "state") for one in known)

    @property
    def step(self) -> int:
        """How many forwards of the model are over."""
        return max(self.where.begun - 1, 0)

    def outside(self, tensor: Tensor) -> Origin:
        """The origin of what is not finite and comes from nothing that was read."""
        known = self.names.look_up()(tensor)
        return Origin(causes.INPUT) if known is None else _outside(known)

    def made_aside(self, event: Event) -> Origin:
        """With the finding, should something be made of it. Masks are filled again and again."""
        key = event.op, self.place()
        if not event.is_fill() or key not in self._constants:
            finding = self.finding(event, None)
            meant = event.is_fill() and not event.holds_nan
            self._constants[key] = Origin(finding.cause, finding=finding, meant=meant)
        return self._constants[key]

    def finding(self, event: Event, origin: Origin | None) -> Finding:
        """Of a forward or an optimizer's step; origin: what is to blame, None for the operation."""
        inputs = _beside(event)
        names = list(map(self.names.look_up(), (given.memory for given in inputs)))
        parameter, place = origin.name if origin else "", self.place()
        direction = "forward"
        if _is_step(event, [one.kind for one in names if one]):
            direction = "optimizer"
            parameter = parameter or next((one.name for one in names if one), "")
            place = place.in_module_of(parameter)
        summaries = [
            summary_of(_named(given.name, one), values_of(given.value))
            for given, one in zip(inputs, names, strict=True)
            if given.value is not None
        ]
        cause = origin.cause if origin else event.cause()
        return self._made(event.op, direction, place, cause, event.results, summaries, parameter)

    def follows(self, event: NodeEvent) -> bool:
        """Whether what the forward kept was bad before."""
        saved = event.saved_tensors().values()
        return any(is_bad(t) and not (self.taints.get(t) or TOLD).meant for t in saved)

    def node_finding(self, event: NodeEvent) -> Finding:
        """Of a backward."""
        what_is, parameter = self.names.look_up(), ""
        place = self.nodes.get(event.node._sequence_nr())
        if event.leaf is not None:
            owner = what_is(event.leaf)
            parameter = owner.name if owner else ""
        if place is None:
            place = self.place().in_module_of(parameter)
        inputs = [("grad", t) for t in event.incoming if isinstance(t, Tensor)]
        inputs += event.saved_tensors().items()
        summaries = [summary_of(_named(n, what_is(t)), values_of(t)) for n, t in inputs]
        cause = event.cause()
        return self._made(event.op, "backward", place, cause, event.gradients, summaries, parameter)

    def _made(
        self,
        op: str,
        direction: str,
        place: Place,
        cause: str,
        results: list[Tensor],
        inputs: list[TensorSummary],
        parameter: str,
    ) -> Finding:
        source, result = line_of(*place.line), values_of(results[0])
        inside = place.module != OUTSIDE
        return Finding(
            op=op,
            direction=direction,
            module=place.module,
            source=source,
            cause=cause,
            remedy=remedy_of(op, cause, direction, source.text, place.within, inside),
            inputs=tuple(inputs[:_SHOWN]),
            counts=counts_of(result),
            index=first_index(result),
            parameter=parameter,
            step=self.step,
            called_from=line_of(*place.own),
            rank=own_rank(),
        )


def _line(frame: FrameType | None) -> tuple[str, int]:
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _outside(known: Known) -> Origin:
    if known.kind == "gradient":
        return Origin(causes.GRADIENT if own_rank() is None else causes.RANK, known.name)
    return Origin(causes.STATE if known.kind == "state" else causes.WEIGHT, known.name)


def _named(name: str, known: Known | None) -> str:
    return f"{name} = {known}" if known else name


def _beside(event: Event) -> list[Given]:
    """Floating inputs; of lists those at the place of the first bad result."""
    given = [g for g in event.given if is_inexact(g.memory)]
    sizes = Counter(g.name for g in given)
    place = next((g.place for g in given if g.memory is event.results[0]), event.place)
    return [g for g in given if sizes[g.name] == 1 or g.place == place]


def _is_step(event: Event, kinds: list[str]) -> bool:
    """Within an optimizer's step, or where gradients go in."""
    return event.stepping or "gradient" in kinds or "state" in kinds
