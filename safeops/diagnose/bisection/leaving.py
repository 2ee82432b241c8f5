"""Modules leave half precision one by one, while those around and inside of them stay in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..._where import EAGERLY, recomputing

HALVES = (torch.float16, torch.bfloat16)
_EMPTY = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # without arithmetic of their own


class Mode(NamedTuple):
    """What autocast does."""

    enabled: bool
    dtype: torch.dtype


def computes(module: nn.Module) -> bool:
    """Whether its forward may have arithmetic of its own."""
    return type(module) not in _EMPTY and type(module).forward is not nn.Module.forward


class Leaving:
    """In a module that leaves, autocast is off, and all that comes in (arguments, results of its
    submodules, half weights) is float32; its submodules run as before. Results stay float32 under
    autocast; where the weights themselves are half, they go back to half.

    Args:
        model: whose modules.
        dtype: of an autocast around it; None leaves that to the step.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None):
        parameter = next(model.parameters(), None)
        self.dtype = dtype
        self.device = "cpu" if parameter is None else parameter.device.type
        self.modules = [module for module in model.modules() if computes(module)]
        self.suspects: list[
            nn.Module
        ] = []  # those that gave bad numbers for good ones, in that order
        self._running: list[nn.Module] = []
        self._left: set[nn.Module] = set()
        self._outer = self._here()
        weights = (parameter.dtype for parameter in model.parameters())
        self.half = next((dtype for dtype in weights if dtype in HALVES), None)

    def _here(self) -> Mode:
        return Mode(torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device))

    @contextmanager
    def leave(self, modules: set[nn.Module]) -> Iterator[None]:
        """These, for this block."""
        self._left, self._running, self.suspects = modules, [], []
        with ExitStack() as stack:
            stack.enter_context(EAGERLY)
            for module in self.modules:
                stack.enter_context(_forward_of(module, self._wrapped(module)))
            yield

    def _wrapped(self, module: nn.Module) -> Callable:
        inner = module.forward

        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self._running and not recomputing():
                self._outer = Mode(True, self.dtype) if self.dtype else self._here()
            from_left = bool(self._running) and self._running[-1] in self._left
            if from_left and module not in self._left and self.half and not self._outer.enabled:
                args, kwargs = _to((args, kwargs), self.half)
            self._running.append(module)
            try:
                output = self._run(module, inner, args, kwargs)
            finally:
                self._running.pop()
            return _to_float(output) if from_left else output

        return forward

    def _run(self, module: nn.Module, inner: Callable, args: Any, kwargs: Any) -> Any:
        if module in self._left:
            return self._in_float(module, inner, args, kwargs)
        with torch.autocast(self.device, self._outer.dtype, self._outer.enabled):
            output = inner(*args, **kwargs)
        if _bad(output) and not _bad((args, kwargs)) and module not in self.suspects:
            self.suspects.append(module)
        return output

    def _in_float(self, module: nn.Module, inner: Callable, args: Any, kwargs: Any) -> Any:
        half = None if self._outer.enabled else self.half
        with torch.autocast(self.device, enabled=False), _float_tensors(module):
            output = inner(*_to_float(args), **_to_float(kwargs))
        return output if half is None else _to(output, half)


@contextmanager
def _forward_of(module: nn.Module, forward: Callable) -> Iterator[None]:
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@contextmanager
def _float_tensors(module: nn.Module) -> Iterator[None]:
    """The module's half weights and buffers as float32, with the gradient to the half ones; what
    it writes to the buffers is kept."""
    tables: list[dict[str, Any]] = [cast(dict, module._parameters), module._buffers]
    before = [dict(table) for table in tables]
    for table in tables:
        table.update({name: _to_float(tensor) for name, tensor in table.items()})
    try:
        yield
    finally:
        _write_back(module._buffers, before[1])
        for table, old in zip(tables, before, strict=True):
            table.update(old)


@torch.no_grad()
def _write_back(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name, buffer in before.items():
        if _is_half(buffer):
            buffer.copy_(now[name])


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in HALVES


def _to_float(tree: Any) -> Any:
    return tree_map(lambda value: value.float() if _is_half(value) else value, tree)


def _to(tree: Any, dtype: torch.dtype) -> Any:
    def cast(value: Any) -> Any:
        whole = isinstance(value, Tensor) and value.dtype is torch.float32
        return value.to(dtype) if whole else value

    return tree_map(cast, tree)


def _bad(tree: Any) -> bool:
    leaves = (leaf.detach() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return any(not bool(leaf.isfinite().all()) for leaf in leaves if leaf.is_floating_point())
