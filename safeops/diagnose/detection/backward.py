"""Every node of the graph as its backward runs: the gradients that it gives are read.

A formula may be infinite in between and still right at its end, so only the end is judged.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import causes
from .operations import is_bad
from .taints import TOLD

if TYPE_CHECKING:
    from .detect import Detection


@dataclass(eq=False)
class NodeEvent:
    """A node that gave a gradient that is not finite. came_in: what it got was so already;
    summed: and that was the sum of several. stale: so was the .grad that it adds to."""

    node: Any
    gradients: list[Tensor]
    incoming: list[Tensor]
    came_in: bool
    summed: bool
    stale: bool

    @property
    def op(self) -> str:
        return str(self.node.name()).split("::")[-1]

    @property
    def leaf(self) -> Tensor | None:
        return _leaf_of(self.node)

    @cached_property
    def saved(self) -> dict[str, Any]:
        """What the forward kept for it, by name; nothing where it is computed again, or gone."""
        try:
            return _saved(self.node)
        except Exception:  # whatever a hook on saved tensors raises
            return {}

    def saved_tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.saved.items() if isinstance(value, Tensor)}

    def cause(self) -> str:
        if self.came_in:
            (bad, *_) = filter(_is_bad, self.incoming)
            overflow = causes.overflow_of(bad.dtype, causes.EXPLODING)
            return overflow if self.summed and _overflowed(bad) else causes.GRADIENT
        if self.stale:
            return causes.GRADIENT
        given = [gradient for gradient in self.incoming if isinstance(gradient, Tensor)]
        dtype = self.gradients[0].dtype
        overflow = causes.overflow_of(dtype, causes.EXPLODING)
        if self.leaf is not None:
            return overflow
        name = causes.plain_name(self.op)
        return causes.backward_cause(name, self.saved, given, dtype) or overflow


def _saved(node: Any) -> dict[str, Any]:
    if hasattr(node, "saved_tensors"):  # of a torch.autograd.Function
        return {f"saved[{i}]": tensor for i, tensor in enumerate(node.saved_tensors)}
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return {name.removeprefix("_saved_"): getattr(node, name) for name in names}


_watching: list[tuple[int, Detection]] = []  # with the thread of each


@contextmanager
def watched_backward(detection: Detection) -> Iterator[None]:
    """Each call of the engine in this thread hooks the nodes that it will run."""
    entry = threading.get_ident(), detection
    if not _watching:
        torch.autograd._engine_run_backward = _run  # type: ignore[attr-defined]
    _watching.append(entry)
    try:
        yield
    finally:
        _watching.remove(entry)
        if not _watching:
            torch.autograd._engine_run_backward = _engine  # type: ignore[attr-defined]


_engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]


def _run(t_outputs: Any, grad_tensors: Any, *args: Any, **kwargs: Any) -> Any:
    _, _, inputs, *_ = args  # after retain_graph and create_graph
    with ExitStack() as stack:
        for thread, detection in _watching:
            if thread == threading.get_ident():
                nodes = _Nodes(detection, t_outputs, inputs)
                detection.judge_outputs([t for t in t_outputs if isinstance(t, Tensor)])
                stack.enter_context(nodes)
                stack.enter_context(detection.aside(nodes.run_python()))
        return _engine(t_outputs, grad_tensors, *args, **kwargs)


class _Nodes:
    """The nodes below some outputs, hooked for one run of the engine."""

    def __init__(self, detection: Detection, outputs: Any, inputs: Any):
        self.detection = detection
        ends = set(map(_node_of, inputs or ()))
        self.edges: Counter[Any] = Counter()  # how many gradients a node is the sum of
        self.expecting: set[Any] = set()  # nodes that a bad gradient goes to
        waiting = [node for node in map(_node_of, outputs) if node is not None]
        self.nodes = set(waiting)
        while waiting:
            node = waiting.pop()
            nexts = () if node in ends else node.next_functions
            below = [node for node, _ in nexts if node is not None]
            self.edges.update(below)
            waiting += [node for node in dict.fromkeys(below) if node not in self.nodes]
            self.nodes.update(below)

        leaves = ((node, _leaf_of(node)) for node in self.nodes)
        self.stale = {node for node, leaf in leaves if leaf is not None and _is_bad(leaf.grad)}

    def run_python(self) -> bool:
        """Whether some are functions of the user's, or a checkpoint that computes again."""
        return any(hasattr(node, "saved_tensors") for node in self.nodes)

    def __enter__(self) -> None:
        self.hooks = [node.register_hook(partial(self._ran, node)) for node in self.nodes]

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()
        self.nodes.clear()

    def _ran(self, node: Any, given: tuple, incoming: tuple) -> None:
        leaf = _leaf_of(node)
        if leaf is not None:
            given = (leaf.grad,)
        bad = [i for i, gradient in enumerate(given) if _is_bad(gradient)]
        if not bad:
            return
        came_in = any(map(_is_bad, incoming))
        gradients = [given[i] for i in bad]
        taints = self.detection.scene.taints
        told = all(taints.get(gradient) is TOLD for gradient in gradients)
        if not told and not (came_in and node in self.expecting):
            with torch._C._DisableTorchDispatch():  # these operations are ours
                self.detection.judge_node(
                    NodeEvent(
                        node=node,
                        gradients=gradients,
                        incoming=list(incoming),
                        came_in=came_in,
                        summed=self.edges[node] > 1,
                        stale=node in self.stale,
                    )
                )
        if leaf is None:
            self.expecting.update(node.next_functions[i][0] for i in bad)
        for gradient in gradients:
            taints.put(gradient, TOLD)


def _node_of(output: Any) -> Any:
    """Of a tensor or a GradientEdge; None if no gradient goes there, of which the engine tells."""
    if not isinstance(output, Tensor):
        return output.node
    return torch.autograd.graph.get_gradient_edge(output).node if output.requires_grad else None


def _leaf_of(node: Any) -> Tensor | None:
    """That accumulates the gradient, if that is what the node does."""
    return getattr(node, "variable", None)


def _overflowed(total: Tensor) -> bool:
    """Whether a sum of finite gradients can be this: no NaN, and the rest is large too."""
    finite = total[torch.isfinite(total)].abs()
    large = finite.numel() == 0 or float(finite.max()) > torch.finfo(total.dtype).max ** 0.5
    return large and not bool(total.isnan().any())


def _is_bad(gradient: Any) -> bool:
    return isinstance(gradient, Tensor) and is_bad(gradient)
