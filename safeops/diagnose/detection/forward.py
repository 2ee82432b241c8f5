"""Every operation of torch as it runs: what it gives is read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .judge import Event
from .operations import (
    UNKNOWN,
    Facts,
    argument,
    arguments,
    facts_of,
    is_bad,
    is_inexact,
    local,
    tensors_in,
    values_of,
)
from .taints import RAW

if TYPE_CHECKING:
    from .detect import Detection

_RUNNERS = ("torch/nn/modules/module.py", "torch/optim/optimizer.py")
_OVERWRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads what each operation gives; in a backward, the hooks of the nodes do that."""

    supports_higher_order_operators = True

    def __init__(self, detection: Detection):
        super().__init__()  # type: ignore[no-untyped-call]
        self.detection = detection
        self.facts: dict[Any, Facts] = {}
        self.first_node = _next_node()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: a call would take twice as long, and within a detection nothing is compiled."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        facts = self.facts.get(func) or self._learn(func)
        node = torch._C._current_autograd_node()
        backward = node is not None and not runs_forward_again()
        self._note(node if backward else None)
        if backward or facts.passes:
            return func(*args, **kwargs)
        call = _Writing(func, facts, args, kwargs) if facts.written else None
        result = func(*args, **kwargs)
        self.detection.operations += 1
        if facts.raw:
            self.detection.scene.taints.put(result, RAW)
        elif call is not None:
            self._read(call, [*tensors_in(result), *call.written()])
        elif type(result) is not Tensor or is_bad(result):
            results = tensors_in(result)
            self._read(_Call(func, facts, args, kwargs), results[:1] if facts.keeps else results)
        return result

    def _learn(self, func: Any) -> Facts:
        """Of torch.cond and the like nothing is known."""
        known = isinstance(func, torch._ops.OpOverload)
        return self.facts.setdefault(func, facts_of(func) if known else UNKNOWN)

    def _note(self, node: Any) -> None:
        """Where the newest node of the graph was made; by a backward: where the node that made it
        was."""
        newest = _next_node() - 1
        scene = self.detection.scene
        if newest >= self.first_node and newest not in scene.nodes:
            made = scene.place() if node is None else scene.nodes.get(node._sequence_nr())
            scene.note(newest, made)

    def _read(self, call: _Call, results: list[Tensor]) -> None:
        found = list({id(tensor): tensor for tensor in results}.values())
        bad = [place for place, tensor in enumerate(found) if is_bad(tensor)]
        scene = self.detection.scene
        if bad:
            self.detection.judge(call.event([found[place] for place in bad], bad[0], scene.lasts))
        else:
            for tensor in filter(is_inexact, call.written()):
                scene.taints.overwritten(tensor)
        if call.facts.name == "_amp_update_scale_":
            scale, found_inf = call.args[0], call.args[2]
            self.detection.step_is_over(skipped=bool(found_inf.item()), scale=scale)


class _Call:
    """An operation and what it was given."""

    def __init__(self, func: Any, facts: Facts, args: tuple, kwargs: dict[str, Any]):
        self.func, self.facts, self.args, self.kwargs = func, facts, args, kwargs
        self.before: dict[str, Tensor] = {}
        self.overwritten: dict[str, list[tuple[Tensor, bool]]] = {}

    def written(self) -> list[Tensor]:
        places = self.facts.written
        return [t for i in places for t in tensors_in(argument(self.func, i, *self.given))]

    @property
    def given(self) -> tuple[tuple, dict[str, Any]]:
        return self.args, self.kwargs

    def event(self, bad: list[Tensor], place: int, lasts: Callable[[list[Tensor]], bool]) -> Event:
        written = [self.func._schema.arguments[place].name for place in self.facts.written]
        lost = [name for name in written if name not in self.before]
        given = dict(arguments(self.func, *self.given))
        traced = any(
            tensor.requires_grad for value in given.values() for tensor in tensors_in(value)
        )
        return Event(
            op=self.facts.name,
            arguments={name: local(value) for name, value in given.items() if name not in lost},
            before=self.before,
            overwritten=self.overwritten,
            results=local(bad),
            place=place,
            traced=traced,
            stepping=first_of(_RUNNERS) == 1,
            lasting=lasts(self.written()),
        )


class _Writing(_Call):
    """One that will write. Of that, copies are kept where a gradient is wanted; an optimizer writes
    all weights, and of those it is known only whether they are finite."""

    def __init__(self, func: Any, facts: Facts, args: tuple, kwargs: dict[str, Any]):
        super().__init__(func, facts, args, kwargs)
        for place in () if facts.name in _OVERWRITE else facts.written:
            value = argument(func, place, args, kwargs)
            name = func._schema.arguments[place].name
            if isinstance(value, Tensor) and torch.is_grad_enabled():
                self.before[name] = values_of(value).detach().clone()
            else:
                tensors = tensors_in(local(value))
                self.overwritten[name] = [(tensor, is_bad(tensor)) for tensor in tensors]


def _next_node() -> int:
    """The number that the next node of the graph gets."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def runs_forward_again() -> bool:
    """In a backward: a checkpoint computes what it did not keep."""
    return torch.is_grad_enabled() and first_of(("utils/checkpoint.py", "autograd/graph.py")) == 0


def first_of(files: tuple[str, ...]) -> int | None:
    """Which of these the program is in; of several the innermost."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for place, file in enumerate(files):
            if frame.f_code.co_filename.endswith(file):
                return place
        frame = frame.f_back
    return None
