"""Runs of a step from the same state, and the search among them."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves

from ..._arguments import check_callable, check_model, check_optimizer, check_others
from ..._gradients import NonFiniteGradientError, NonFiniteGradientWarning
from ..._ranks import is_sharded
from ...gradients import check_finite
from ..injection.targets import holds
from .report import FINITE, FOUND, IRREPRODUCIBLE, BisectReport, Culprit, Kind, Trial
from .state import TrainingState
from .subsets import Set, Smallest, Test, smallest

_BAD = (FloatingPointError, NonFiniteGradientError, NonFiniteGradientWarning)
_TORCH_SAYS = ("is non-finite, so it cannot be clipped", "returned nan values in its")


class Trials:
    """The step with modules treated, each time from the same state.

    Args:
        names: of the modules. treated: the context in which those of a set are treated.
    """

    def __init__(
        self,
        kind: Kind,
        model: nn.Module,
        step: Callable[[], Any],
        state: TrainingState,
        names: Sequence[str],
        treated: Callable[[Set], AbstractContextManager],
    ):
        self.kind, self.model, self.step, self.state = kind, model, step, state
        self.names, self.treated = names, treated
        self.runs: list[tuple[Set, bool]] = []
        self._masks = [name for name, one in model.named_buffers() if not check_finite([one])]

    def search(
        self, remedy: Callable[[str], str], likely: Callable[[Test], Sequence[int]] = lambda _: ()
    ) -> BisectReport:
        """likely: asked after the first runs for what is suspected, with the test of a set."""
        alone = not _on_several_ranks(self.model)  # what is suspected may differ from rank to rank
        with self._progress():
            verdict, found = self._verdict(likely if alone else lambda _: ())
        trials = [Trial(self._named(chosen), finite) for chosen, finite in self.runs]
        need, names = self.kind.need, self._named(found.chosen)
        findings = [Culprit(name, need, "error", remedy(name)) for name in names]
        proven = found.proven and not self._contradicted()
        return BisectReport(self.kind, verdict, self.names, trials, findings, proven)

    def _verdict(self, likely: Callable[[Test], Sequence[int]]) -> tuple[str, Smallest]:
        nothing = Smallest(frozenset(), False)
        if self.run(frozenset()):
            return FINITE, nothing
        if self.run(frozenset()):
            return IRREPRODUCIBLE, nothing
        if not self.run(frozenset(range(len(self.names)))):
            return self.kind.not_these, nothing
        found = smallest(len(self.names), self._finite, likely(self._finite))
        return (FOUND, found) if self.run(found.chosen) else (IRREPRODUCIBLE, nothing)

    def _finite(self, chosen: Set) -> bool:
        """As it was in the last run with this set, if there was one."""
        known = (finite for one, finite in reversed(self.runs) if one == chosen)
        finite = next(known, None)
        return self.run(chosen) if finite is None else finite

    def _named(self, chosen: Set) -> tuple[str, ...]:
        return tuple(self.names[one] for one in sorted(chosen))

    def _contradicted(self) -> bool:
        """A larger set was bad though a smaller one in it was good."""
        good = [chosen for chosen, finite in self.runs if finite]
        bad = [chosen for chosen, finite in self.runs if not finite]
        return any(small <= large for small in good for large in bad)

    # --- one run -----------------------------------------------------------------------------

    def run(self, chosen: Set) -> bool:
        """Whether all is finite afterwards; the state is as before."""
        with self._restored(), self.treated(chosen):
            finite = _agreed(self.model, self._is_finite())
        self.runs.append((chosen, finite))
        self._advance()
        return finite

    @contextmanager
    def _restored(self) -> Iterator[None]:
        handle = register_optimizer_step_pre_hook(self._meet)
        try:
            yield
        finally:
            handle.remove()
            self.state.restore()

    def _meet(self, optimizer: torch.optim.Optimizer, *call: Any) -> None:
        """Before its first step an optimizer has the state in which all runs begin."""
        if any(holds(optimizer, parameter) for parameter in self.model.parameters()):
            self.state.add(optimizer)

    def _is_finite(self) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", NonFiniteGradientWarning)
                result = self.step()
        except _BAD:
            return False
        except RuntimeError as error:
            if any(words in str(error) for words in _TORCH_SAYS):
                return False
            raise
        return self._is_good(result)

    def _is_good(self, result: Any) -> bool:
        """A buffer that held an infinity or NaN before (a mask) is not looked at."""
        leaves = tree_leaves(result)
        if not all(math.isfinite(leaf) for leaf in leaves if isinstance(leaf, float)):
            return False
        parameters = list(self.model.parameters())
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
        tensors += [parameter.grad for parameter in parameters if parameter.grad is not None]
        buffers = self.model.named_buffers()
        tensors += [buffer for name, buffer in buffers if name not in self._masks]
        return bool(check_finite([*tensors, *parameters]))

    # --- progress ----------------------------------------------------------------------------

    _advance: Callable[[], None] = staticmethod(lambda: None)

    @contextmanager
    def _progress(self) -> Iterator[None]:
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"{self.kind.title}: the first run", total=None)
            self._advance = lambda: progress.update(
                task, description=f"{self.kind.title}: {len(self.runs)} runs"
            )
            yield


class Frozen:
    """Parameters whose gradients are 0, and None in an optimizer's step.

    Not requires_grad=False: a step in which everything is frozen could not run backward, and a
    gradient scaler wants gradients. None: momentum and weight decay move what has a 0.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters, self._stepping = parameters, False

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for parameter in self.parameters:
            parameter.grad = None
            hook: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
            self._stack.callback(hook(self._drop).remove)
        self._stack.callback(register_optimizer_step_pre_hook(self._before).remove)
        self._stack.callback(register_optimizer_step_post_hook(self._after).remove)

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _drop(self, parameter: Tensor) -> None:
        """A closure computes gradients within the step."""
        if self._stepping or parameter.grad is None:
            parameter.grad = None
        else:
            parameter.grad.zero_()

    def _before(self, *call: Any) -> None:
        self._stepping, self._held = True, [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def _after(self, *call: Any) -> None:
        self._stepping = False
        for parameter, gradient in zip(self.parameters, self._held, strict=True):
            parameter.grad = None if gradient is None else gradient.zero_()


def check(model: Any, step: Any, optimizer: Any, others: Any, filter_fn: Any) -> None:
    check_model(model)
    check_optimizer(optimizer)
    check_others(others)
    if filter_fn is not None:
        check_callable("filter_fn(module, name)", filter_fn)
    if not callable(step):
        kind = type(step).__name__
        raise TypeError(f"expected a step that can be called without arguments, got {kind}")


def _on_several_ranks(model: nn.Module) -> bool:
    shared = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    return shared or any(is_sharded(parameter) for parameter in model.parameters())


def _agreed(model: nn.Module, finite: bool) -> bool:
    """On all ranks: they must go on with the same run."""
    if not _on_several_ranks(model):
        return finite
    flag = torch.tensor([float(finite)], device=next(model.parameters()).device)
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())
