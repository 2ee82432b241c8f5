"""Every node of the graph as its backward runs: the gradients that it gives are read.

A formula may be infinite in between and still right at its end, so only the end is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from . import causes
from .operations import is_bad
from .taints import TOLD

if TYPE_CHECKING:
    from .detect import Detection


class NodeEvent(NamedTuple):
    """A node that gave a gradient that is not finite. came_in: what it got was so already;
    summed: and that was the sum of several."""

    node: Any
    gradients: list[Tensor]
    incoming: list[Tensor]
    came_in: bool
    summed: bool

    @property
    def op(self) -> str:
        return str(self.node.name()).split("::")[-1]

    @property
    def leaf(self) -> Tensor | None:
        """That accumulates the gradient, if that is what the node does."""
        return getattr(self.node, "variable", None)

    def saved(self) -> dict[str, Any]:
        """What the forward kept for it, by name; nothing where it is computed again, or gone."""
        try:
            return _saved(self.node)
        except RuntimeError:
            return {}

    def saved_tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.saved().items() if isinstance(value, Tensor)}

    def cause(self) -> str:
        if self.came_in:
            (bad, *_) = filter(_is_bad, self.incoming)
            overflow = causes.overflow_of(bad.dtype, causes.EXPLODING)
            return overflow if self.summed and _overflowed(bad) else causes.GRADIENT
        found = causes.backward_cause(causes.plain_name(self.op), self.saved())
        return found or causes.overflow_of(self.gradients[0].dtype, causes.EXPLODING)


def _saved(node: Any) -> dict[str, Any]:
    if hasattr(node, "saved_tensors"):  # of a torch.autograd.Function
        return {f"saved[{i}]": tensor for i, tensor in enumerate(node.saved_tensors)}
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return {name.removeprefix("_saved_"): getattr(node, name) for name in names}


@contextmanager
def watched_backward(detection: Detection) -> Iterator[None]:
    """Each call of the engine hooks the nodes that it will run."""
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with _Nodes(detection, t_outputs):
            return engine(t_outputs, *args, **kwargs)

    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]


class _Nodes:
    """The nodes below some outputs, hooked for one run of the engine."""

    def __init__(self, detection: Detection, outputs: Any):
        self.detection = detection
        self.edges: Counter[Any] = Counter()  # how many gradients a node is the sum of
        self.expecting: set[Any] = set()  # nodes that a bad gradient goes to
        waiting = [_node_of(output) for output in outputs]
        self.nodes = set(waiting)
        while waiting:
            below = [node for node, _ in waiting.pop().next_functions if node is not None]
            self.edges.update(below)
            waiting += [node for node in dict.fromkeys(below) if node not in self.nodes]
            self.nodes.update(below)

    def __enter__(self) -> None:
        self.hooks = [node.register_hook(self._ran) for node in self.nodes]

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _ran(self, given: tuple, incoming: tuple) -> None:
        node = torch._C._current_autograd_node()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            given = (leaf.grad,)
        bad = [i for i, gradient in enumerate(given) if _is_bad(gradient)]
        if not bad:
            return
        came_in = any(map(_is_bad, incoming))
        gradients = [given[i] for i in bad]
        if not (came_in and node in self.expecting):
            summed = self.edges[node] > 1
            with torch._C._DisableTorchDispatch():  # these operations are ours
                event = NodeEvent(node, gradients, list(incoming), came_in, summed)
                self.detection.judge_node(event)
        if leaf is None:
            self.expecting.update(node.next_functions[i][0] for i in bad)
        for gradient in gradients:
            self.detection.scene.taints.put(gradient, TOLD)


def _node_of(output: Any) -> Any:
    """Of a tensor or a GradientEdge."""
    edge = torch.autograd.graph.get_gradient_edge(output) if isinstance(output, Tensor) else output
    return edge.node


def _overflowed(total: Tensor) -> bool:
    """Whether a sum of finite gradients can be this: no NaN, and the rest is large too."""
    finite = total[torch.isfinite(total)].abs()
    large = finite.numel() == 0 or float(finite.max()) > torch.finfo(total.dtype).max ** 0.5
    return large and not bool(total.isnan().any())


def _is_bad(gradient: Any) -> bool:
    return isinstance(gradient, Tensor) and is_bad(gradient)
