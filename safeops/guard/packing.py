"""Plain values for a file that torch.load(weights_only=True) reads, and back."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .tensors import local

_MARK = "__packed__"
_FACTORIES: Mapping[str, Any] = {
    **{one.__name__: one for one in (dict, list, set, int, float)},
    "none": None,
}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Unpackable(TypeError):
    """A value that no checkpoint can hold."""


def packed(value: Any, path: str = "", known: dict[int, Tensor] | None = None) -> Any:
    """Of tensors what this rank holds; arrays, deques and default dicts marked; a tensor that comes
    twice stays one."""
    known = {} if known is None else known
    if isinstance(value, Tensor):
        return known.setdefault(id(value), local(value))
    if type(value) in _PLAIN or type(value) is set:
        return value
    if isinstance(value, deque):
        return {_MARK: "deque", "value": packed(list(value), path, known), "size": value.maxlen}
    if isinstance(value, dict):
        return _packed_dict(value, path, known)
    if isinstance(value, (list, tuple)):
        items = [packed(one, f"{path}[{i}]", known) for i, one in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    return _of_numpy(value, path)


def _packed_dict(value: dict, path: str, known: dict[int, Tensor]) -> Any:
    items = {key: packed(one, f"{path}.{key}".lstrip("."), known) for key, one in value.items()}
    if isinstance(value, Counter):
        return {_MARK: "Counter", "value": items}
    if isinstance(value, defaultdict):
        return {_MARK: "defaultdict", "value": items, "of": _name_of(value.default_factory, path)}
    return OrderedDict(items) if isinstance(value, OrderedDict) else items


def _name_of(factory: Any, path: str) -> str:
    for name, one in _FACTORIES.items():
        if one is factory:
            return name
    known = ", ".join(_FACTORIES)
    raise Unpackable(f"expected default dicts of {known} in {path or 'the state'}, got {factory!r}")


def _of_numpy(value: Any, path: str) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return {_MARK: "numpy", "value": torch.from_numpy(value.copy())}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise Unpackable(
        f"expected numbers, text, tensors, arrays, dicts, lists or tuples, got {kind} in "
        f"{path or 'the state'}: give its owner a state_dict() of these"
    )


def unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if _MARK in value:
            return _MADE[value[_MARK]](value)
        items = {key: unpacked(one) for key, one in value.items()}
        return OrderedDict(items) if isinstance(value, OrderedDict) else items
    if type(value) in (list, tuple):
        return type(value)(unpacked(one) for one in value)
    return value


_MADE: Mapping[str, Callable[[Any], Any]] = {
    "deque": lambda marked: deque(unpacked(marked["value"]), marked["size"]),
    "Counter": lambda marked: Counter(unpacked(marked["value"])),
    "defaultdict": lambda marked: defaultdict(_FACTORIES[marked["of"]], unpacked(marked["value"])),
    "numpy": lambda marked: marked["value"].numpy(),
}
