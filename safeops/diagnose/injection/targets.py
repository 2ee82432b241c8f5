"""Where a fault goes: the module or parameter of a path, or an error that says what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..._arguments import check_model, check_one_of, check_optimizer, check_whole

PLACES = ("forward", "backward", "weight", "optimizer", "batch")
KINDS = ("nan", "inf", "huge")


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def holds(optimizer: torch.optim.Optimizer, parameter: Tensor) -> bool:
    return any(p is parameter for group in optimizer.param_groups for p in group["params"])


def check(model: Any, step: Any, what: str, where: str, optimizer: Any) -> None:
    check_model(model)
    check_optimizer(optimizer)
    check_whole("step", step, 0)
    check_one_of("what", what, KINDS)
    check_one_of("where", where, PLACES)


def check_holds(optimizer: Any, parameter: Tensor, at: str) -> None:
    if optimizer is not None and not holds(optimizer, parameter):
        kind = type(optimizer).__name__
        raise ValueError(
            f"expected an optimizer of the parameter at {at!r}, got a {kind} of others"
        )


def module_at(model: nn.Module, at: str) -> nn.Module:
    modules = dict(model.named_modules(remove_duplicate=False))
    if at not in modules:
        raise _unknown("module", at, modules)
    return modules[at]


def parameter_at(model: nn.Module, at: str) -> Tensor:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    if at not in parameters and at not in modules:
        raise _unknown("module or parameter", at, [*modules, *parameters])
    of_it = [parameters[at]] if at in parameters else modules[at].parameters()
    first = next((p for p in of_it if is_floating(p)), None)
    if first is None:
        raise ValueError(f"expected floating parameters in {at!r}, got none: name another module")
    return first


def _unknown(kind: str, at: str, names: Iterable[str]) -> ValueError:
    names = [name for name in names if name]
    wrapped = [name for name in names if name.endswith(f".{at}")]
    close = dict.fromkeys(wrapped + difflib.get_close_matches(at, names))
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else "see model.named_modules()"
    return ValueError(f"expected the path of a {kind} of the model, got {at!r}: {hint}")
