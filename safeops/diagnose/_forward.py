"""Every operation of torch as it runs: what it gives is read."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._judge import Event
from ._operations import Facts, argument, arguments, facts_of, is_bad, tensors_in

if TYPE_CHECKING:
    from .detect import Detection

_OVERWRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads what each operation gives; in a backward, the hooks of the nodes do that."""

    def __init__(self, detection: Detection):
        super().__init__()  # type: ignore[no-untyped-call]
        self.detection = detection
        self.facts: dict[Any, Facts] = {}
        self.first_node = _next_node()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        facts = self.facts.get(func) or self.facts.setdefault(func, facts_of(func))
        node = torch._C._current_autograd_node()
        backward = node is not None and not runs_forward_again()
        self._note(node if backward else None)
        if backward or facts.passes:
            return func(*args, **kwargs)
        before = _kept(func, facts, args, kwargs)
        result = func(*args, **kwargs)
        self.detection.operations += 1
        self._read(func, facts, args, kwargs, before, result)
        return result

    def _note(self, node: Any) -> None:
        """Where the newest node of the graph was made; by a backward: where the node that made it
        was."""
        newest = _next_node() - 1
        scene = self.detection.scene
        if newest >= self.first_node and newest not in scene.nodes:
            made = scene.place() if node is None else scene.nodes.get(node._sequence_nr())
            scene.nodes[newest] = made

    def _read(
        self,
        func: Any,
        facts: Facts,
        args: tuple,
        kwargs: dict[str, Any],
        before: dict[str, Any],
        result: Any,
    ) -> None:
        names = [func._schema.arguments[place].name for place in facts.written]
        written = [t for i in facts.written for t in tensors_in(argument(func, i, args, kwargs))]
        results = tensors_in(result)[: 1 if facts.keeps else None]
        bad = [tensor for tensor in _distinct(results + written) if is_bad(tensor)]
        if bad:
            unknown = frozenset(name for name in names if name not in before)
            given = dict(arguments(func, args, kwargs))
            self.detection.judge(Event(facts.name, given, before, unknown, bad))
        else:
            for tensor in written:
                self.detection.scene.taints.overwritten(tensor)
        if facts.name == "_amp_update_scale_":
            self.detection.step_is_over(skipped=bool(args[2].item()), scale=args[0])


def _next_node() -> int:
    """The number that the next node of the graph gets."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _kept(func: Any, facts: Facts, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Copies of what is written, where a gradient is wanted: an optimizer writes all weights."""
    if not facts.written or facts.name in _OVERWRITE or not torch.is_grad_enabled():
        return {}
    written = [func._schema.arguments[place].name for place in facts.written]
    given = dict(arguments(func, args, kwargs))
    return {
        name: given[name].detach().clone()
        for name in written
        if isinstance(given.get(name), Tensor) and name != "out"
    }


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
