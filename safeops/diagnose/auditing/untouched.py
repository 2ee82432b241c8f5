"""A forward that leaves no trace: state, gradients, flags and random numbers are as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..._random import random_numbers
from .findings import unreadable


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """In training mode, without gradients. Buffers are copies while the block runs; what a module
    stores in itself is forgotten; a parameter that a forward overwrites in place stays so."""
    with _attributes(model), _gradients(model), ExitStack() as stack, torch.no_grad():
        stack.callback(random_numbers())
        _copy_buffers(model)
        if not model.training:
            model.train()
        yield


@contextmanager
def _attributes(model: nn.Module) -> Iterator[None]:
    """Every module has its attributes, buffers, parameters and children again."""
    saved = [(vars(module), dict(vars(module))) for module in model.modules()]
    tables = [
        (table, dict(table))
        for _, attributes in saved
        for name in ("_buffers", "_parameters", "_modules")
        if isinstance(table := attributes.get(name), dict)
    ]
    try:
        yield
    finally:
        for held, before in [*saved, *tables]:
            if not _same(held, before):
                held.clear()
                held.update(before)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = zip(one.items(), other.items(), strict=False)
    return len(one) == len(other) and all(a == b and x is y for (a, x), (b, y) in pairs)


def _copy_buffers(model: nn.Module) -> None:
    """A buffer that several modules share is one copy."""
    copies: dict[int, Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not unreadable(buffer):
                copy = copies.setdefault(id(buffer), buffer.detach().clone())
                module._buffers[name] = copy


@contextmanager
def _gradients(model: nn.Module) -> Iterator[None]:
    saved = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in saved:
            if parameter.grad is not gradient:
                parameter.grad = gradient
