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
        self._running: list[tuple[nn.Module, Mode]] = []
        self._modes: dict[nn.Module, Mode] = {}  # of the last call, for when it is computed again
        self._left: set[nn.Module] = set()
        weights = (parameter.dtype for parameter in model.parameters())
        self.half = next((dtype for dtype in weights if dtype in HALVES), None)
        self.any_half = self.half is not None  # or autocast, or what a module gave

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
            from_left = bool(self._running) and self._running[-1][0] in self._left
            mode = self._modes[module] = self._mode_of(module, from_left)
            if from_left and module not in self._left and self.half and not mode.enabled:
                args, kwargs = _to((args, kwargs), self.half)
            self._running.append((module, mode))
            try:
                output = self._run(module, mode, inner, args, kwargs)
            finally:
                self._running.pop()
            return _to_float(output) if from_left else output

        return forward

    def _mode_of(self, module: nn.Module, from_left: bool) -> Mode:
        """A module around it may have its own autocast. One that left is in the mode of before,
        unless it has its own."""
        here = self._here()
        if from_left:
            return here if here.enabled else self._running[-1][1]
        if not self._running and recomputing():
            return self._modes.get(module, here)
        return Mode(True, self.dtype) if self.dtype and not self._running else here

    def _run(self, module: nn.Module, mode: Mode, inner: Callable, args: Any, kwargs: Any) -> Any:
        if module in self._left:
            return self._in_float(module, mode, inner, args, kwargs)
        with torch.autocast(self.device, mode.dtype, mode.enabled):
            output = inner(*args, **kwargs)
        self.any_half |= mode.enabled or any(map(_is_half, tree_leaves(output)))
        if _bad(output) and not _bad((args, kwargs)) and module not in self.suspects:
            self.suspects.append(module)
        return output

    def _in_float(
        self, module: nn.Module, mode: Mode, inner: Callable, args: Any, kwargs: Any
    ) -> Any:
        half = None if mode.enabled else self.half
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
