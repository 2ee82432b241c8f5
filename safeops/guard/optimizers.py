"""The state of an optimizer by the places of its parameters, and the way back, in place."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._ranks import is_sharded
from .tensors import kind_of, local, put


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """As its state_dict(), without the hooks of that."""
    parameters = parameters_in([optimizer])
    index = {id(parameter): i for i, parameter in enumerate(parameters)}
    state = {
        index[id(key)] if isinstance(key, Tensor) else key: plain_copied(value)
        for key, value in optimizer.state.items()
        if not isinstance(key, Tensor) or id(key) in index  # torch keeps the state of one that left
    }
    groups = []
    for group in optimizer.param_groups:
        rest = {key: plain_copied(value) for key, value in group.items() if key != "params"}
        groups.append(rest | {"params": [index[id(one)] for one in group["params"]]})
    return {"state": state, "param_groups": groups}


def parameters_in(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    return [p for one in optimizers for group in one.param_groups for p in group["params"]]


def plain_copied(value: Any) -> Any:
    """Containers anew, tensors as they are, all else as a copy."""
    leaves, form = tree_flatten(value)
    kept = [leaf if isinstance(leaf, Tensor) else copy.deepcopy(leaf) for leaf in leaves]
    return tree_unflatten(kept, form)


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
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
        made = copy.copy(saved)  # a default dict, too
        for key, value in saved.items():
            made[key] = _placed(value, old.get(key), near)
        return made
    if isinstance(saved, list):
        return [_placed(value, None, near) for value in saved]
    return copy.deepcopy(saved)


def _placed_tensor(saved: Tensor, live: Any, near: Tensor | None) -> Tensor:
    if isinstance(live, Tensor) and kind_of(local(live)) == kind_of(saved):
        put(live, saved)
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
