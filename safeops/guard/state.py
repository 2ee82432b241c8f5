"""What training consists of, as plain containers of live tensors; and the way back, in place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .._random import random_state, set_random_state
from .._where import plain_path
from .optimizers import load_optimizer, of_optimizer, plain_copied
from .tensors import kind_of, local, named_leaves, put

State = dict[str, Any]
PARTS = ("kinds", "model", "optimizers", "schedulers", "scaler", "others", "data")
KINDS = ("optimizers", "schedulers", "others", "data", "scaler")
_EXTRA = "_extra_state"


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of DDP and torch.compile, whose names a checkpoint has."""
    while True:
        inner = getattr(model, "_orig_mod", model)
        inner = inner.module if isinstance(inner, DistributedDataParallel) else inner
        if inner is model:
            return model
        model = inner


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
            "kinds": self._kinds(),
            "model": _tensors_of(self.model),
            "optimizers": [of_optimizer(one) for one in self.optimizers],
            "schedulers": [_copied(one.state_dict()) for one in self.schedulers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "others": [_of_other(one) for one in self.others],
            "data": None if self.data is None else _copied(self.data.state_dict()),
        }

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Of model, optimizers and others, as a message names them."""
        yield from named_leaves(_tensors_of(self.model))
        for optimizer in self.optimizers:
            keys = list(optimizer.state)
            for key, name in zip(keys, self.names_of(keys), strict=True):
                for path, one in named_leaves(optimizer.state[key]):
                    yield f"{path} of {name}", one
        for place, other in enumerate(self.others):
            yield from named_leaves(_of_other(other), f"others[{place}]")

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

    def load_buffers(self, buffers: Sequence[Tensor], saved: State) -> list[str]:
        """Some of them; the names of those that are not there."""
        named = [(self.model, saved["model"]), *zip(self.others, saved["others"], strict=True)]
        known: dict[int, tuple[str, Any]] = {}
        for module, state in named:
            if isinstance(module, nn.Module):
                pairs = module.named_buffers()
                known |= {id(one): (name, state.get(plain_path(name))) for name, one in pairs}
        return [name for one in buffers for name in _put(one, *known.get(id(one), ("?", None)))]

    def no_state(self) -> State:
        """That holds nothing."""
        return {"model": {}, "others": [{} for _ in self.others]}

    def random(self) -> State:
        """The state of all random numbers, those of Generators among the others, too."""
        return random_state() | {"generators": [one.get_state() for one in self._generators()]}

    def set_random(self, state: State) -> None:
        set_random_state(state)
        for one, saved in zip(self._generators(), state["generators"], strict=True):
            one.set_state(saved)

    def _generators(self) -> list[torch.Generator]:
        return [one for one in self.others if isinstance(one, torch.Generator)]

    def misfits(self, saved: State) -> list[str]:
        """Why it cannot be loaded: what differs."""
        missing = [name for name in PARTS if name not in saved]
        if missing:
            return [f"it holds no {', '.join(missing)}"]
        kinds = zip(KINDS, saved["kinds"], self._kinds(), strict=True)
        found = [
            f"{name}: {there} there, {here} here" for name, there, here in kinds if there != here
        ]
        found += _module_differences("model", self.model, saved["model"])
        for i, (one, state) in enumerate(zip(self.optimizers, saved["optimizers"], strict=False)):
            found += _group_differences(i, one.param_groups, state["param_groups"])
        for i, (other, state) in enumerate(zip(self.others, saved["others"], strict=False)):
            if isinstance(other, nn.Module) and isinstance(state, dict):
                found += _module_differences(f"others[{i}]", other, state)
        return found

    def _kinds(self) -> list[str]:
        """What each part is."""
        parts = (self.optimizers, self.schedulers, self.others, [self.data])
        scaler = self.scaler is not None and self.scaler.is_enabled()
        found = [", ".join(_class(one) for one in part) or "none" for part in parts]
        return [*found, "enabled" if scaler else "none"]

    def form(self) -> tuple[int, ...]:
        """What must be alike for a snapshot to fit: the sizes of the groups of parameters."""
        groups = (group for one in self.optimizers for group in one.param_groups)
        return tuple(len(group["params"]) for group in groups)


def _put(buffer: Tensor, name: str, saved: Any) -> list[str]:
    """Its name, if it cannot be."""
    if saved is None or kind_of(local(buffer)) != kind_of(saved):
        return [name]
    put(buffer, saved)
    return []


def _copied(value: Any) -> Any:
    return copy.deepcopy(value)


def _class(part: Any) -> str:
    return "none" if part is None else type(unwrapped(part)).__name__


def _module_differences(what: str, module: nn.Module, saved: dict[str, Any]) -> Iterator[str]:
    here = _steady(module, _tensors_of(module))
    return _differences(what, here, _steady(module, saved))


def _local(value: Any) -> Any:
    return local(value) if isinstance(value, Tensor) else value


def _differences(what: str, here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    for name in sorted(here.keys() ^ there.keys()):
        yield f"{what}: {name} is only {'here' if name in here else 'there'}"
    for name in sorted(here.keys() & there.keys()):
        kinds = [kind_of(one) for one in (there[name], _local(here[name]))]
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


def _steady(module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Without buffers that are not persistent: they may come, go and grow."""
    loose = {
        _joined(path, name)
        for path, one in module.named_modules(remove_duplicate=False)
        for name in one._non_persistent_buffers_set
    }
    return {name: value for name, value in state.items() if name not in loose}


def buffers_of(module: nn.Module) -> dict[str, Any]:
    """What replicas of a model need not share."""
    weights = {plain_path(name) for name, _ in module.named_parameters(remove_duplicate=False)}
    return {name: one for name, one in _tensors_of(module).items() if name not in weights}


def _with_extra_state(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, one in module.named_modules(remove_duplicate=False):
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            yield plain_path(name) + "." * bool(name), one


def _load_module(module: nn.Module, saved: dict[str, Any]) -> None:
    """Parameters stay the same objects, and buffers where they fit."""
    for name, parameter in module.named_parameters():
        put(parameter, saved[plain_path(name)])
    near = next(module.parameters(), torch.empty(0)).device
    for path, one in module.named_modules():
        for name, buffer in one._buffers.items():
            value = saved.get(_joined(path, name))
            one._buffers[name] = _loaded_buffer(buffer, value, near)
    for prefix, one in _with_extra_state(module):
        one.set_extra_state(_copied(saved[prefix + _EXTRA]))


def _loaded_buffer(live: Tensor | None, saved: Any, near: torch.device) -> Tensor | None:
    if saved is None:
        return None
    if live is None or kind_of(local(live)) != kind_of(saved):
        return saved.to(near if live is None else live.device, copy=True)
    put(live, saved)
    return live


def _joined(path: str, name: str) -> str:
    return plain_path(f"{path}.{name}" if path else name)


# --- others --------------------------------------------------------------------------------------


def _of_other(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return _tensors_of(value)
    if isinstance(value, torch.Generator):
        return None  # it is one of the random numbers
    return plain_copied(value.state_dict())


def _load_other(value: Any, saved: Any) -> None:
    if isinstance(value, nn.Module):
        _load_module(value, saved)
    elif not isinstance(value, torch.Generator):
        value.load_state_dict(_copied(saved))
