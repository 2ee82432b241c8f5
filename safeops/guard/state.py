"""What training consists of, as plain containers of live tensors; and the way back, in place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._ranks import is_sharded
from .._where import plain_path

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


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it, in the same memory."""
    with torch.no_grad():
        if is_sharded(tensor):
            return tensor.to_local()  # type: ignore[attr-defined]
        return tensor.detach()


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
            "optimizers": [_of_optimizer(one) for one in self.optimizers],
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
                _load_optimizer(optimizer, state)
            others = zip(self.others, saved["others"], strict=True)
            for other, state in [*zip(self.schedulers, saved["schedulers"], strict=True), *others]:
                _load_other(other, state)
        if self.scaler is not None and saved["scaler"] is not None:
            self.scaler.load_state_dict(saved["scaler"])
        if data and self.data is not None and saved["data"] is not None:
            self.data.load_state_dict(_copied(saved["data"]))

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
        kinds = [_kind(one) for one in (there[name], here[name])]
        if kinds[0] != kinds[1]:
            yield f"{what}: {name} is {kinds[0]} there, {kinds[1]} here"


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


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


# --- optimizers ----------------------------------------------------------------------------------


def _of_optimizer(optimizer: torch.optim.Optimizer) -> State:
    """As its state_dict(), without the hooks of that."""
    parameters = parameters_in([optimizer])
    index = {id(parameter): i for i, parameter in enumerate(parameters)}
    state = {
        index[id(key)] if isinstance(key, Tensor) else key: _plain_copied(value)
        for key, value in optimizer.state.items()
    }
    groups = []
    for group in optimizer.param_groups:
        rest = {key: _plain_copied(value) for key, value in group.items() if key != "params"}
        groups.append(rest | {"params": [index[id(one)] for one in group["params"]]})
    return {"state": state, "param_groups": groups}


def parameters_in(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    return [p for one in optimizers for group in one.param_groups for p in group["params"]]


def _plain_copied(value: Any) -> Any:
    """Containers anew, tensors as they are, all else as a copy."""
    leaves, form = tree_flatten(value)
    kept = [leaf if isinstance(leaf, Tensor) else _copied(leaf) for leaf in leaves]
    return tree_unflatten(kept, form)


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: State) -> None:
    places = 0
    for group, state in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        wanted = {key: value for key, value in state.items() if key != "params"}
        for key in group.keys() - wanted.keys() - {"params"}:
            del group[key]
        group.update({key: _placed(value, group.get(key)) for key, value in wanted.items()})
        for parameter in group["params"]:
            _load_state_of(optimizer, group, parameter, saved["state"].get(places))
            places += 1
    rest = {key: value for key, value in saved["state"].items() if not isinstance(key, int)}
    optimizer.state.update({key: _placed(rest[key], optimizer.state.get(key)) for key in rest})


def _load_state_of(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor, saved: Any
) -> None:
    if saved is None:
        optimizer.state.pop(parameter, None)
        return
    live = optimizer.state.get(parameter, {})
    fused = group.get("fused") or group.get("capturable")
    near = {key: parameter for key in saved if key != "step" or fused}
    optimizer.state[parameter] = {
        key: _placed(value, live.get(key), near.get(key)) for key, value in saved.items()
    }


def _placed(saved: Any, live: Any, near: Tensor | None = None) -> Any:
    """What was saved: in the live tensor if it fits, else a new one, on the device of `near`."""
    if isinstance(saved, Tensor):
        return _placed_tensor(saved, live, near)
    if isinstance(saved, dict):
        old = live if isinstance(live, dict) else {}
        return type(saved)(
            (key, _placed(value, old.get(key), near)) for key, value in saved.items()
        )
    if isinstance(saved, list):
        return [_placed(value, None, near) for value in saved]
    return _copied(saved)


def _placed_tensor(saved: Tensor, live: Any, near: Tensor | None) -> Tensor:
    if isinstance(live, Tensor) and _kind(local(live)) == _kind(saved):
        local(live).copy_(saved)
        return live
    if near is None:
        return saved.clone()
    made = saved.to(near.device, copy=True)
    if is_sharded(near) and local(near).shape == saved.shape:
        return _as_sharded(made, near)
    return made


def _as_sharded(tensor: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        tensor,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


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
    return _plain_copied(value.state_dict())


def _load_other(value: Any, saved: Any) -> None:
    if isinstance(value, nn.Module):
        _load_module(value, saved)
    elif isinstance(value, torch.Generator):
        value.set_state(saved)
    else:
        value.load_state_dict(_copied(saved))
