"""The hooks of a monitor: two on the model, and those on layers only while a step is observed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils._pytree import tree_leaves

from ..._route import transforms_active
from ..._where import EAGERLY, plain_path, recomputing
from .steps import Step, is_watched

_HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)  # never called


class Layer(NamedTuple):
    name: str
    module: nn.Module


def layers_of(model: nn.Module, filter_fn: Callable[[nn.Module, str], bool] | None) -> list[Layer]:
    """The modules without children, each once. The projection of a MultiheadAttention is never
    called, so there the whole is the layer."""
    found: list[Layer] = []
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        whole = isinstance(module, nn.MultiheadAttention)
        inside.update(module.modules() if whole else ())
        leaf = whole or (next(module.children(), None) is None and module not in inside)
        name = plain_path(path) or type(module).__name__
        wanted = leaf and not isinstance(module, _HOLDERS)
        if wanted and (filter_fn is None or filter_fn(module, name)):
            found.append(Layer(name, module))
    return found


def _nothing(*given: Any) -> None:
    """What a hook of a monitor is in a copy of the model."""


def _copied() -> Callable[..., None]:
    return _nothing


class Hook:
    """A function as a hook. Whoever copies or pickles the model gets one that does nothing: a
    monitor watches one model."""

    def __init__(self, call: Callable[..., None]):
        self.call = call

    def __call__(self, *given: Any) -> None:
        if not is_compiling():  # into a graph no hook goes
            self.call(*given)

    def __reduce__(self) -> Any:
        return _copied, ()


class Watch:
    """Calls begin() for each forward that is a step; a Step in return is filled."""

    def __init__(
        self,
        model: nn.Module,
        layers: list[Layer],
        gradients: bool,
        evaluation: bool,
        begin: Callable[[], Step | None],
    ):
        self.model, self.layers = model, layers
        self.gradients, self.evaluation, self.begin = gradients, evaluation, begin
        self._running = 0  # forwards of the model, one within the other
        self._armed: list[Any] = []
        self._leaves: list[Any] = []  # hooks of tensors that outlive the step
        self._on_model = [
            model.register_forward_pre_hook(Hook(self._enter)),
            model.register_forward_hook(Hook(self._leave), prepend=True, always_call=True),
        ]
        self._compiled: Any = model._compiled_call_impl
        if self._compiled is not None:  # by model.compile(): that code runs no hook
            model._compiled_call_impl = self._call

    def close(self) -> None:
        self._disarm()
        for handle in (*self._on_model, *self._leaves):
            handle.remove()
        self._on_model = []
        if self._compiled is not None and self.model._compiled_call_impl == self._call:
            self.model._compiled_call_impl = self._compiled

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._on_model:  # closed before another that calls this one
            return self._compiled(*args, **kwargs)
        self._enter()
        try:
            return self._compiled(*args, **kwargs)
        finally:
            self._leave()

    def _enter(self, *given: Any) -> None:
        self._running += 1
        if self._running > 1 or not self._counts():
            return
        for handle in self._leaves:
            handle.remove()
        self._leaves = []
        if (step := self.begin()) is not None:
            self._arm(step)

    def _leave(self, *given: Any) -> None:
        self._running = max(0, self._running - 1)
        if not self._running:
            self._disarm()

    def _counts(self) -> bool:
        if transforms_active() or recomputing():
            return False
        return self.evaluation or (self.model.training and torch.is_grad_enabled())

    def _arm(self, step: Step) -> None:
        EAGERLY.__enter__()
        self._armed = [
            layer.module.register_forward_hook(Hook(partial(self._read, step, place)))
            for place, layer in enumerate(self.layers)
        ]

    def _disarm(self) -> None:
        if self._armed:
            EAGERLY.__exit__()
        for handle in self._armed:
            handle.remove()
        self._armed = []

    def _read(self, step: Step, place: int, module: nn.Module, given: Any, output: Any) -> None:
        """At once: the values are in the cache now, and the next layer may write over them."""
        for tensor in [output] if isinstance(output, Tensor) else tree_leaves(output):
            if is_watched(tensor):
                step.read(place, tensor)
                if self.gradients and tensor.requires_grad:
                    self._await(step, place + len(self.layers), tensor)

    def _await(self, step: Step, place: int, tensor: Tensor) -> None:
        hook = Hook(partial(_read_gradient, step, place))
        handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            self._leaves.append(handle)


def _read_gradient(step: Step, place: int, gradient: Tensor | None) -> None:
    if is_watched(gradient):
        step.read(place, gradient)  # type: ignore[arg-type]
