"""swap_: an existing model gets safe modules and functions, in place, and gets its own back.

Only classes change: torch.nn.LayerNorm becomes safeops.nn.LayerNorm, and a class of the user one
like it whose forward runs under safe_mode. Parameters, buffers, hooks, ties and places stay.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from .classes import change, check_class, is_swapped, restore
from .functions import table_for
from .plan import Filter, Plan, planned
from .report import SwapReport, dotted
from .table import Options


def swap_(
    model: nn.Module,
    *,
    modules: bool = True,
    functions: bool = True,
    filter_fn: Filter | None = None,
    options: Options | None = None,
    dry_run: bool = False,
    report: SwapReport | str | Mapping[str, Any] | None = None,
) -> SwapReport:
    """Make a model numerically safe in place, and say what was done.

    Modules of torch.nn that can give NaN become their equivalents in ``safeops.nn``, and the
    forwards of the model and of its own modules run under ``safeops.safe_mode``, so that ``/``,
    ``log``, ``softmax`` and the like in there are guarded too. What torch computes with finite
    value and gradient stays as it is. Only the classes of modules change, so parameters, buffers,
    hooks, ties, state_dict, pickle, deepcopy and wrappers keep working. ``unswap_`` undoes it.

    A loss that is computed outside the model is outside of it: swap the criterion too, or compute
    it under ``safeops.safe_mode``.

    Args:
        model: any torch.nn.Module. If something fails it is left as it was.
        modules: replace modules.
        functions: run forwards under safe_mode.
        filter_fn: ``(module, name) -> bool``, asked for every module that would be changed: False
            leaves its class alone. What it calls is still safe where a module around it runs under
            safe_mode, such as the model itself, whose name is "".
        options: keywords for single ops in safe_mode, such as ``{"safe_log": {"eps": 1e-6}}``.
        dry_run: report, and change nothing.
        report: do what this report (or its JSON) says was done, instead of all the above.

    Returns:
        A SwapReport: ``.replaced``, ``.forwards``, ``.functions``, ``.left``. Swapping a swapped
        model changes nothing, and the report says so.

    Raises:
        TypeError, ValueError, RuntimeError: no module, an unknown option, a filter that fails, a
            report of another model.

    >>> import torch, safeops
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LogSoftmax(-1))
    >>> [(entry.name, entry.now) for entry in safeops.swap_(model).replaced]
    [('1', 'safeops.nn.LogSoftmax')]
    """
    check_model("swap_", model)
    if report is not None:
        if options or filter_fn is not None:
            raise TypeError("swap_: report holds the settings; give it, or options and filter_fn")
        return _again(model, SwapReport.of(report), dry_run)
    if not isinstance(modules, bool) or not isinstance(functions, bool):
        raise TypeError("swap_: modules and functions are True or False; filter_fn chooses modules")
    if filter_fn is not None and not callable(filter_fn):
        raise TypeError(
            "swap_: filter_fn must be a function (module, name) -> bool, got "
            f"{type(filter_fn).__name__}"
        )
    table_for(options)
    plan, left = planned(model, modules, functions, filter_fn)
    if not dry_run:
        _apply(plan, options or {})
    return SwapReport([entry for _, entry in plan], left, options or {}, model)


def unswap_(model: nn.Module) -> tuple[str, ...]:
    """Undo swap_ on this model: every module has its own class again.

    Returns the names of the modules that were changed back; none, with a warning, if the model was
    not swapped.

    Raises:
        TypeError: no module.
        RuntimeError: a module was given yet another class since, for example by fully_shard or by
            a parametrization; nothing is changed then.

    >>> import torch, safeops
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LogSoftmax(-1))
    >>> report = safeops.swap_(model)
    >>> safeops.unswap_(model)
    ('', '1')
    """
    check_model("unswap_", model)
    swapped_ones = {name: m for name, m in model.named_modules() if is_swapped(m)}
    for name, module in swapped_ones.items():
        check_class(name, module)
    for module in swapped_ones.values():
        restore(module)
    if not swapped_ones:
        warnings.warn("unswap_: this model is not swapped; nothing was done", stacklevel=2)
    return tuple(swapped_ones)


@contextlib.contextmanager
def swapped(model: nn.Module, **settings: Any) -> Iterator[SwapReport]:
    """``swap_`` for the length of a ``with`` block; takes the same settings, gives the report.

    What was swapped before stays so.

    >>> import torch, safeops
    >>> model = torch.nn.Softmax(-1)
    >>> with safeops.swapped(model):
    ...     model(torch.full((2,), -torch.inf))
    tensor([0., 0.])
    """
    check_model("swapped", model)
    before = {module for module in model.modules() if is_swapped(module)}
    report = swap_(model, **settings)
    named = {name: m for name, m in model.named_modules() if is_swapped(m) and m not in before}
    try:
        yield report
    finally:
        for name, module in named.items():
            check_class(name, module)
        for module in named.values():
            restore(module)


def _apply(plan: Plan, options: Options) -> None:
    """All of it, or nothing."""
    for done, (module, entry) in enumerate(plan):
        try:
            change(module, entry, options)
        except Exception as error:
            for changed, _ in plan[: done + 1]:
                restore(changed)
            raise RuntimeError(
                f"swap_: {entry.was} at {entry.name!r} cannot get another class ({error}); leave "
                "it out with filter_fn. The model is as it was"
            ) from error


def _again(model: nn.Module, report: SwapReport, dry_run: bool) -> SwapReport:
    """What a report says, done to another copy of the model."""
    there = dict(model.named_modules())
    for entry in report.changed:
        found = dotted(type(there[entry.name])) if entry.name in there else "nothing"
        if found != entry.was or is_swapped(there[entry.name]):
            found += " (swapped)" if found == entry.was else ""
            raise ValueError(
                f"swap_: the report changed {entry.was} at {entry.name!r}, where this model has "
                f"{found}; it takes an unswapped model of the same code. Nothing was changed"
            )
    if not dry_run:
        _apply([(there[entry.name], entry) for entry in report.changed], report.options)
    return SwapReport(report.changed, report.left, report.options, model)


def check_model(caller: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(
            f"{caller}: expected a torch.nn.Module, got {kind}; functions and losses are made safe "
            "by `with safeops.safe_mode():`"
        )
