"""What a Guard is given: checked before anything is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from .._arguments import check_callable, check_other, check_others, check_whole
from .._ranks import own_rank
from .judge import listed
from .optimizers import parameters_in
from .policy import Policy


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check_optimizers(optimizers: Sequence[Any]) -> None:
    for one in optimizers:
        if not isinstance(one, torch.optim.Optimizer):
            raise TypeError(f"expected a torch optimizer, got {type(one).__name__}")
        if type(one).__name__ == "ZeroRedundancyOptimizer":
            raise TypeError(
                "expected an optimizer that holds its states, got ZeRO: use fully_shard"
            )
    if not optimizers:
        raise ValueError("expected an optimizer or a list of them, got none")


def check_parameters(model: nn.Module, optimizers: Sequence[Any], others: Iterable[Any]) -> None:
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            raise ValueError(
                f"expected parameters with values, got a lazy or meta one ({name}): run one "
                "forward before, or model.to_empty() and the initialisation"
            )
    modules = [model, *(one for one in others if isinstance(one, nn.Module))]
    known = {id(parameter) for module in modules for parameter in module.parameters()}
    places = [f"place {i}" for i, p in enumerate(parameters_in(optimizers)) if id(p) not in known]
    if places:
        raise ValueError(
            f"expected an optimizer of the model's parameters, got {len(places)} that are none of "
            f"them ({listed(places)}): make it after model.to(), swaps and fully_shard, and give "
            "modules beside the model in others=[...]"
        )


def check_schedulers(schedulers: Sequence[Any], optimizers: Sequence[Any]) -> None:
    for one in schedulers:
        if isinstance(one, LRScheduler) and all(one.optimizer is not it for it in optimizers):
            raise ValueError(
                f"expected schedulers of the optimizer, got a {type(one).__name__} of another one"
            )
        if isinstance(one, ReduceLROnPlateau):
            raise ValueError(
                "expected schedulers that advance at each step, got ReduceLROnPlateau, which needs "
                "a metric: give it in others=[...] and call its step yourself"
            )
        if not all(hasattr(one, name) for name in ("step", "state_dict", "load_state_dict")):
            raise TypeError(f"expected a learning rate scheduler, got {type(one).__name__}")


def check_scaler(scaler: Any, asks: bool) -> None:
    if scaler is None:
        return
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"expected a torch.amp.GradScaler or None, got {type(scaler).__name__}")
    if asks and scaler.is_enabled():
        raise ValueError("expected no scaler beside an optimizer that needs a closure")


def as_policy(policy: Any) -> Policy:
    if not isinstance(policy, (Policy, type(None))):
        raise TypeError(f"expected a safeops.guard.Policy or None, got {type(policy).__name__}")
    return policy or Policy()


def check_rest(others: Any, data: Any, counts: dict[str, tuple[Any, int]]) -> None:
    check_others(others)
    for other in others:
        check_other(other)
    if data is not None and not (hasattr(data, "state_dict") and hasattr(data, "load_state_dict")):
        raise TypeError(
            f"expected data with state_dict() and load_state_dict(), got {type(data).__name__}: "
            "give safeops.guard.Batches(loader), and iterate over that"
        )
    for name, (value, least) in counts.items():
        check_whole(name, value, least)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step takes a closure that it evaluates as often as it likes, as LBFGS."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def asks(optimizers: Sequence[torch.optim.Optimizer], accumulate: int, snapshots: int) -> bool:
    """Whether there is one optimizer, which needs a closure."""
    found = any(map(needs_closure, optimizers))
    if found and (len(optimizers) > 1 or accumulate > 1 or snapshots < 1):
        raise ValueError(
            "expected an optimizer that needs a closure to be alone, with accumulate=1 and at "
            f"least one snapshot; got {len(optimizers)} optimizers, {accumulate=}, {snapshots=}"
        )
    return found


def check_log(log: Any) -> None:
    if log is not None and (Path(log).is_dir() or not Path(log).parent.is_dir()):
        raise FileNotFoundError(
            f"expected the path of a file in a directory that exists as log, got {log}"
        )


def log_path(log: Any, directory: Path | None) -> Path | None:
    """Each rank has its own file."""
    if log is None and directory is None:
        return None
    path = Path(log) if log is not None else directory / "guard.jsonl"  # type: ignore[operator]
    rank = own_rank()
    return path.with_name(f"{path.stem}-rank-{rank}{path.suffix}") if rank else path


def changed_by_forward(others: Sequence[Any]) -> list[nn.Module]:
    """Modules but averages, which change after a step."""
    modules = (one for one in others if isinstance(one, nn.Module))
    return [one for one in modules if not isinstance(one, AveragedModel)]


def check_writer(writer: Any) -> None:
    for name in ("add_scalar", "add_text") if writer is not None else ():
        check_callable(f"writer.{name}", getattr(writer, name, None))
