"""Which modules must be frozen, or must leave half precision, for a step to be finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .leaving import HALVES, Leaving, computes
from .report import AUTOCAST, LAYERS, NOTHING_HALF, BisectReport
from .state import TrainingState
from .subsets import Set, Test
from .trials import Frozen, Trials, check

__all__ = ["BisectReport", "bisect_autocast", "bisect_layers"]

Filter = Callable[[nn.Module, str], bool]


def bisect_layers(
    model: nn.Module,
    step: Callable[[], Any],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    others: Iterable[Any] = (),
    filter_fn: Filter | None = None,
) -> BisectReport:
    """min |S| such that the step is finite while the modules in S are frozen.

    The step runs as often as needed, O(k log n) times for k culprits among n modules, each time
    from the same state, which is put back at the end and after an error, bit by bit. It is bad if
    what it returns, a gradient, a parameter or a buffer is not finite afterwards, or if it raises
    FloatingPointError or NonFiniteGradientError, or warns that gradients were skipped. The
    parameters of a frozen module have a gradient of 0, and none while an optimizer steps, so that
    neither weight decay nor momentum moves them. The ranks of a DDP or sharded model decide alike.

    Args:
        model: its modules with trainable parameters of their own are looked at; a parameter of
            several modules belongs to the first.
        step: without arguments; runs forward, backward and the optimizer's step on always the same
            batch, best two or three times, so that what an update spoils is seen. It may return
            the loss.
        optimizer: the one that steps; those that step without being given are found.
        others: what else changes and has state_dict() and load_state_dict(), as schedulers and
            gradient scalers; modules and torch.Generators too.
        filter_fn: which modules may be frozen, by (module, name).

    Returns:
        A BisectReport: ``verdict``, ``modules``, ``smallest``, ``runs``, ``trials``.

    Raises:
        TypeError: a model or optimizer that is none, a step or filter_fn that cannot be called,
            others that are no list, or without a state.
        ValueError: no trainable module that passes filter_fn. What else the step raises.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> groups = [{"params": model[0].parameters(), "lr": 0.1},
    ...           {"params": model[2].parameters(), "lr": 1e38}]
    >>> optimizer = torch.optim.SGD(groups)
    >>> def step():
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         loss = model(torch.ones(8, 4)).square().sum()
    ...         loss.backward()
    ...         optimizer.step()
    ...     return loss
    >>> bisect_layers(model, step).modules
    ['2']

    Source: Zeller and Hildebrandt, 2002, "Simplifying and isolating failure-inducing input".
    """
    check(model, step, optimizer, others, filter_fn)
    owned = _owned(model, filter_fn)
    parameters = list(owned.values())

    def frozen(chosen: Set) -> AbstractContextManager:
        return Frozen([parameter for one in chosen for parameter in parameters[one]])

    state = TrainingState(model, _given(optimizer, others))
    trials = Trials(LAYERS, model, step, state, list(owned), frozen)
    return trials.search(_freeze_remedy)


def bisect_autocast(
    model: nn.Module,
    step: Callable[[], Any],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    others: Iterable[Any] = (),
    dtype: torch.dtype | None = None,
    filter_fn: Filter | None = None,
) -> BisectReport:
    """min |S| such that the step is finite while the modules in S compute in float32.

    A module's own arithmetic is what leaves, not that of its submodules: they stay in half
    precision unless they are in S. So a block whose forward multiplies is told from the layers in
    it. Of equally small sets one with the modules that made the first bad numbers is preferred.

    Args:
        model, step, optimizer, others: as in bisect_layers.
        dtype: torch.float16 or bfloat16 to run the model under autocast with it; None if the step
            does that itself, or if the weights are half. Half weights of a module that leaves
            are cast in its forward, and its results back: the weights stay as they are.
        filter_fn: which modules may leave, by (module, name).

    Returns:
        A BisectReport; the findings' remedies have the code for the module's forward. It says so
        if nothing ran in half precision.

    Raises:
        As bisect_layers; ValueError for another dtype.

    >>> class Square(torch.nn.Module):
    ...     def forward(self, x): return x * x
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), Square(), torch.nn.LayerNorm(4))
    >>> def step():
    ...     loss = model(torch.full((2, 4), 1e4)).sum()
    ...     loss.backward()
    ...     return loss
    >>> bisect_autocast(model, step, dtype=torch.float16).modules
    ['1']
    """
    if dtype not in (None, *HALVES):
        raise ValueError(f"expected dtype to be torch.float16, torch.bfloat16 or None, got {dtype}")
    check(model, step, optimizer, others, filter_fn)
    named = _computing(model, filter_fn)
    modules, leaving = list(named.values()), Leaving(model, dtype)

    suspects: dict[Set, list[int]] = {}  # of each set, those that gave bad numbers without it

    @contextmanager
    def left(chosen: Set) -> Iterator[None]:
        with leaving.leave({modules[one] for one in chosen}):
            yield
        suspects[chosen] = [modules.index(one) for one in leaving.suspects if one in modules]

    def likely(finite: Test) -> list[int]:
        """The module of the first bad number; when that has left, that of the next; and so on."""
        found: list[int] = []
        while not finite(frozenset(found)) and suspects[frozenset(found)]:
            found.append(suspects[frozenset(found)][0])
        return found

    state = TrainingState(model, _given(optimizer, others))
    trials = Trials(AUTOCAST, model, step, state, list(named), left)
    report = trials.search(lambda name: _leave_remedy(named[name], leaving.device), likely)
    if dtype is None and not leaving.any_half:
        report.note = NOTHING_HALF
    return report


def _given(optimizer: Any, others: Iterable[Any]) -> list[Any]:
    return [*([] if optimizer is None else [optimizer]), *others]


def _owned(model: nn.Module, filter_fn: Filter | None) -> dict[str, list[Tensor]]:
    """The trainable parameters of each module; those of several belong to the first."""
    owned: dict[str, list[Tensor]] = {}
    seen: set[Tensor] = set()
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p not in seen and p.requires_grad]
        seen.update(own)
        if own and (filter_fn is None or filter_fn(module, name)):
            owned[name] = own
    return _some(owned, "trainable parameters of their own")


def _computing(model: nn.Module, filter_fn: Filter | None) -> dict[str, nn.Module]:
    named = {
        name: module
        for name, module in model.named_modules()
        if computes(module) and (filter_fn is None or filter_fn(module, name))
    }
    return _some(named, "a forward of their own")


def _some(candidates: dict[str, Any], kind: str) -> dict[str, Any]:
    if not candidates:
        raise ValueError(f"expected modules with {kind} that pass filter_fn, got none")
    return candidates


def _freeze_remedy(name: str) -> str:
    return (
        f"lower the learning rate of model.get_submodule({name!r}), clip with"
        " safeops.clip_grad_norm_, or freeze it by requires_grad_(False)"
    )


def _leave_remedy(module: nn.Module, device: str) -> str:
    return (
        f"with torch.autocast({device!r}, enabled=False): around the body of"
        f" {type(module).__name__}.forward, where its arguments and what its submodules return are"
        " taken as x.float()"
    )
