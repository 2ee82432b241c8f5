"""What training consists of, as plain containers of live tensors; and the way back, in place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._where import plain_path
from .optimizers import load_optimizer, of_optimizer, plain_copied
from .tensors import kind_of, local

State = dict[str, Any]
PARTS = ("model", "optimizers", "schedulers", "scaler", "others", "data")
_EXTRA = "_extra_state"


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of DDP and torch.compile, whose names a checkpoint has."""
    while True:
        inner = getattr(model, "_orig_mod", model)
        inner = inner.module if isinstance(inner, DistributedDataParallel) else inner
        if inner is model:
            return model
        model = inner


def own(state: State) -> State:
    """With what this rank holds of each tensor; a tensor that comes twice stays one."""
    leaves, form = tree_flatten(state)
    known: dict[int, Tensor] = {}
    return tree_unflatten(
        [
            known.setdefault(id(leaf), local(leaf)) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ],
        form,
    )


class Parts:
    """Model, optimizers, schedulers, scaler, others and the position in the data.

    others: modules, torch.Generators, and what has state_dict() and load_state_dict().
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any],
        scaler: Any,
        others: Sequence[Any],
        data: Any,
    ):
        self.model, self.optimizers, self.schedulers = unwrapped(model), optimizers, schedulers
        self.scaler, self.others, self.data = scaler, others, data

    def state(self) -> State:
        """Of now: tensors are the live ones, all else is copied."""
        return {
            "model": _tensors_of(self.model),
            "optimizers": [of_optimizer(one) for one in self.optimizers],
            "schedulers": [_copied(one.state_dict()) for one in self.schedulers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "others": [_of_other(one) for one in self.others],
            "data": None if self.data is None else _copied(self.data.state_dict()),
        }

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Of model, optimizers and others, as a message names them."""
        yield from _named_leaves(_tensors_of(self.model))
        for optimizer in self.optimizers:
            keys = list(optimizer.state)
            for key, name in zip(keys, self.names_of(keys), strict=True):
                for path, one in _named_leaves(optimizer.state[key]):
                    yield f"{path} of {name}", one
        for place, other in enumerate(self.others):
            yield from _named_leaves(_of_other(other), f"others[{place}]")

    def names_of(self, parameters: Sequence[Any]) -> list[str]:
        known: dict[int, str] = {}
        for module in (*self.others, self.model):
            if isinstance(module, nn.Module):
                known |= {id(p): plain_path(name) for name, p in module.named_parameters()}
        return [known.get(id(parameter), "?") for parameter in parameters]

    def load(self, saved: State, data: bool = True) -> None:
        """Bit by bit, after it was checked."""
        with torch.no_grad():
            _load_module(self.model, saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                load_optimizer(optimizer, state)
            others = zip(self.others, saved["others"], strict=True)
            for other, state in [*zip(self.schedulers, saved["schedulers"], strict=True), *others]:
                _load_other(other, state)
        if self.scaler is not None and saved["scaler"] is not None:
            self.scaler.load_state_dict(saved["scaler"])
        if data and self.data is not None and saved["data"] is not None:
            self.data.load_state_dict(_copied(saved["data"]))

    def load_buffers(self, buffers: Sequence[Tensor], saved: State) -> None:
        """Some of the model's."""
        names = {id(one): plain_path(name) for name, one in self.model.named_buffers()}
        with torch.no_grad():
            for one in buffers:
                if id(one) in names:
                    local(one).copy_(saved["model"][names[id(one)]])

    def misfits(self, saved: State) -> list[str]:
        """Why it cannot be loaded: what differs."""
        missing = [name for name in PARTS if name not in saved]
        if missing:
            return [f"it holds no {', '.join(missing)}"]
        found = list(_differences("model", own(_tensors_of(self.model)), saved["model"]))
        for name in ("optimizers", "schedulers", "others"):
            here, there = len(getattr(self, name)), len(saved[name])
            if here != there:
                found.append(f"{there} {name} there, {here} here")
        for i, (one, state) in enumerate(zip(self.optimizers, saved["optimizers"], strict=False)):
            found += _group_differences(i, one.param_groups, state["param_groups"])
        for i, (other, state) in enumerate(zip(self.others, saved["others"], strict=False)):
            if isinstance(other, nn.Module):
                found += _differences(f"others[{i}]", own(_tensors_of(other)), state)
        return found

    def form(self) -> tuple[int, ...]:
        """What must be alike for a snapshot to fit: the sizes of the groups of parameters."""
        groups = (group for one in self.optimizers for group in one.param_groups)
        return tuple(len(group["params"]) for group in groups)


def _named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested dicts, lists and tuples with their paths."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _named_leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, (list, tuple)):
        for place, value in enumerate(tree):
            yield from _named_leaves(value, f"{path}[{place}]")


def _copied(value: Any) -> Any:
    return copy.deepcopy(value)


def _differences(what: str, here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    for name in sorted(here.keys() ^ there.keys()):
        yield f"{what}: {name} is only {'here' if name in here else 'there'}"
    for name in sorted(here.keys() & there.keys()):
        kinds = [kind_of(one) for one in (there[name], here[name])]
        if kinds[0] != kinds[1]:
            yield f"{what}: {name} is {kinds[0]} there, {kinds[1]} here"


def _group_differences(place: int, here: list[Any], there: list[Any]) -> Iterator[str]:
    sizes = [[len(group["params"]) for group in groups] for groups in (there, here)]
    if sizes[0] != sizes[1]:
        yield f"optimizers[{place}]: groups of {sizes[0]} parameters there, {sizes[1]} here"


# --- modules -------------------------------------------------------------------------------------


def _tensors_of(module: nn.Module) -> dict[str, Any]:
    """Parameters and all buffers by name, as in state_dict(), and extra states."""
    found: dict[str, Any] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found[plain_path(name)] = parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        found[plain_path(name)] = buffer
    for prefix, one in _with_extra_state(module):
        found[prefix + _EXTRA] = _copied(one.get_extra_state())
    return found


def buffers_of(module: nn.Module) -> dict[str, Any]:
    """What replicas of a model need not share."""
    weights = {plain_path(name) for name, _ in module.named_parameters(remove_duplicate=False)}
    return {name: one for name, one in _tensors_of(module).items() if name not in weights}


def _with_extra_state(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, one in module.named_modules(remove_duplicate=False):
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            yield plain_path(name) + "." * bool(name), one


def _load_module(module: nn.Module, saved: dict[str, Any]) -> None:
    live = _tensors_of(module)
    for name, value in saved.items():
        if isinstance(value, Tensor) and isinstance(live[name], Tensor):
            local(live[name]).copy_(value)
    for prefix, one in _with_extra_state(module):
        one.set_extra_state(_copied(saved[prefix + _EXTRA]))


# --- others --------------------------------------------------------------------------------------


def check_other(value: Any) -> None:
    kinds = (nn.Module, torch.Generator)
    if not isinstance(value, kinds) and not (
        hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    ):
        raise TypeError(
            f"expected others with state_dict() and load_state_dict(), got {type(value).__name__}"
        )


def _of_other(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return _tensors_of(value)
    if isinstance(value, torch.Generator):
        return value.get_state()
    return plain_copied(value.state_dict())


def _load_other(value: Any, saved: Any) -> None:
    if isinstance(value, nn.Module):
        _load_module(value, saved)
    elif isinstance(value, torch.Generator):
        value.set_state(saved)
    else:
        value.load_state_dict(_copied(saved))
