"""What swap_ would do to each module of a model, and why it leaves the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from .classes import COUNTERPARTS, guarded_class, is_swapped
from .report import UNDER_SAFE_MODE, Entry, dotted

Filter = Callable[[nn.Module, str], bool]
Plan = list[tuple[nn.Module, Entry]]

_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.")
_QUANTIZED = ("torch.ao.nn.", "torch.nn.quantized", "torch.nn.intrinsic")


def planned(
    model: nn.Module, modules: bool, functions: bool, filter_fn: Filter | None
) -> tuple[Plan, list[Entry]]:
    """What to change, and what is left and why."""
    plan: Plan = []
    left: list[Entry] = []
    outermost = _outermost(model)
    for name, module in _within_reach(model):
        entry = _entry(name, module, modules, functions, module in outermost)
        if entry is None:
            continue
        if entry.now and not _wanted(filter_fn, module, name):
            why = "filter_fn left it out; what it calls is safe where a module around it is"
            entry = Entry(name, entry.was, "", why)
        if entry.now:
            plan.append((module, entry))
        else:
            left.append(entry)
    return plan, left


def _within_reach(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, and none inside a scripted or a quantized one."""
    closed: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in closed:
            continue
        if _is_scripted(module) or _is_quantized(module):
            closed.update(module.modules())
        yield name, module


def _outermost(model: nn.Module) -> set[nn.Module]:
    """The model, or what is called in it where it has no forward of its own or is a wrapper."""
    if _is_wrapper(model) or not _has_forward(model):
        return {module for child in model.children() for module in _outermost(child)}
    return {model}


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_WRAPPERS) and not hasattr(module, "unshard")


def _entry(
    name: str, module: nn.Module, modules: bool, functions: bool, outermost: bool
) -> Entry | None:
    """What happens to a module; None for one that needs nothing."""
    cls = type(module)
    why_not = _why_not(module)
    if why_not is not None:
        return Entry(name, dotted(cls), "", why_not)
    if modules and cls in COUNTERPARTS:
        safe = COUNTERPARTS[cls]
        return Entry(name, dotted(cls), dotted(safe), (safe.__doc__ or "").rstrip("."))
    if _is_wrapper(module) or not _has_forward(module):
        return None
    derived = cls not in COUNTERPARTS and isinstance(module, tuple(COUNTERPARTS))
    if not (outermost or derived or _has_own_forward(cls)):
        return None
    if not functions:
        return Entry(name, dotted(cls), "", "functions=False, and its forward is Python code")
    return _entry_of_forward(name, module)


def _why_not(module: nn.Module) -> str | None:
    """Why a module cannot be changed at all."""
    if is_swapped(module):
        return "already swapped, and stays as it is; unswap_ first to change settings"
    if _is_scripted(module):
        return "scripted: its code is compiled; swap the module it was made from, and do not script"
    if _is_quantized(module):
        return "quantized: safeops takes no quantized tensors"
    if isinstance(module, LazyModuleMixin):
        return "lazy: it gets another class from its first batch; run one, then swap"
    forward = getattr(type(module), "forward", None)
    if inspect.isgeneratorfunction(forward) or inspect.iscoroutinefunction(forward):
        return "its forward is a generator or a coroutine: enter safe_mode in it"
    if type(module).__call__ is not nn.Module.__call__:
        return "it has a __call__ of its own: enter safe_mode in it"
    if "forward" in module.__dict__:
        return "its forward was set on the instance; call that in safe_mode"
    return None


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def _is_quantized(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_QUANTIZED)


def _has_forward(module: nn.Module) -> bool:
    return _is_scripted(module) or type(module).forward is not nn.Module.forward


def _has_own_forward(cls: type) -> bool:
    return not getattr(cls.forward, "__module__", "").startswith("torch.nn.")  # type: ignore[attr-defined]


def _entry_of_forward(name: str, module: nn.Module) -> Entry:
    cls: Any = type(module)
    was = dotted(cls)
    if parametrize.is_parametrized(module):
        return Entry(name, was, "", "parametrized: safe only where a module around it is")
    try:
        guarded_class(cls)
    except Exception as error:
        return Entry(name, was, "", f"no class can be derived from its own: {error}")
    return Entry(name, was, UNDER_SAFE_MODE, "functions and operators that it calls")


def _wanted(filter_fn: Filter | None, module: nn.Module, name: str) -> bool:
    if filter_fn is None:
        return True
    try:
        return bool(filter_fn(module, name))
    except Exception as error:
        raise RuntimeError(
            f"swap_: filter_fn failed at module {name!r} ({dotted(type(module))}): {error!r}; it "
            "gets (module, name) and says whether to change it. The model is as it was"
        ) from error
