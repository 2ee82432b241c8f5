"""monitor: how large, how sparse and how near to overflow every layer is, over the steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._arguments import check_model, check_one_of, check_whole
from .._report import Report
from .hooks import Watch, layers_of
from .steps import COLUMNS, KINDS, LayerStats, Step, verdict_on

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOGETHER = 16  # steps whose readings are fetched from a GPU at once


def monitor(
    model: nn.Module,
    *,
    every: int = 1,
    history: int = 1000,
    filter_fn: Callable[[nn.Module, str], bool] | None = None,
    gradients: bool = True,
    evaluation: bool = False,
) -> Monitor:
    """Keep, for each layer and step, statistics of its outputs and of their gradients.

    A step is a call of the model in training mode, with gradients enabled, and the backward
    through it: forwards whose gradients add up are steps of their own. A layer is a module without
    children; its calls within one step are joined. Each tensor is read once, when it is made, so
    that nothing is kept alive and in-place operations after it do not matter.

    Args:
        model: the module that is called. What of it is compiled runs eagerly in observed steps. A
            model that is called inside of a larger compiled function is not seen. The forwards that
            a checkpoint repeats do not count; inside of a reentrant one gradients are not seen.
        every: only every so many steps is one observed; the others cost next to nothing.
        history: how many observed steps are kept, the last ones.
        filter_fn: filter_fn(module, name) says which layers to observe.
        gradients: also those with respect to the outputs.
        evaluation: also forwards in evaluation mode or without gradients.

    Returns:
        A Monitor: end it by close() or as a context; what it has seen stays.

    Raises:
        TypeError: the model is no module; every or history no integer; filter_fn no function.
        ValueError: every or history below 1; no layer to observe.

    A copy of the model, or a pickle, is not monitored: the hooks in it do nothing.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    >>> with monitor(model) as m:
    ...     model(torch.ones(2, 3)).sum().backward()
    >>> m.layers, m.steps, m.column("nan", "gradient").tolist()
    (['0', '1'], [0], [[0.0], [0.0]])
    """
    check_model(model)
    check_whole("every", every, 1)
    check_whole("history", history, 1)
    if filter_fn is not None and not callable(filter_fn):
        raise TypeError(
            f"expected a function for filter_fn, got {type(filter_fn).__name__}: "
            "pass filter_fn(module, name) that returns a bool"
        )
    return Monitor(model, every, history, filter_fn, gradients, evaluation)


class Monitor(Report):
    """What monitor has seen: steps, columns, a heat map; as a report, the first step with a NaN or
    an infinity, or else the latest."""

    title = "Monitor"

    def __init__(
        self,
        model: nn.Module,
        every: int,
        history: int,
        filter_fn: Callable[[nn.Module, str], bool] | None,
        gradients: bool,
        evaluation: bool,
    ):
        layers = layers_of(model, filter_fn)
        if not layers:
            which = "passes filter_fn" if filter_fn else "can be called"
            raise ValueError(f"expected layers to monitor, but no module without children {which}")
        self.every, self.seen = every, 0
        self.layers: list[str] = [layer.name for layer in layers]
        self._kept: deque[Step] = deque(maxlen=history)
        self._written: dict[int, tuple[Any, dict[str, int]]] = {}  # by id; a writer keeps its own
        self._watch: Watch | None = Watch(model, layers, gradients, evaluation, self._begin)

    def _begin(self) -> Step | None:
        number, self.seen = self.seen, self.seen + 1
        if number % self.every:
            return None
        if number // self.every % _TOGETHER == 0:
            self._settle()
        step = Step(number, len(self.layers))
        self._kept.append(step)
        return step

    def _settle(self) -> Sequence[Step]:
        for step in self._kept:
            step.settle()
        return self._kept

    def close(self) -> None:
        """Take the hooks off the model; what was seen stays."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def __enter__(self) -> Monitor:
        if self._watch is None:
            raise RuntimeError(
                "expected an open monitor, but this one is closed and would observe nothing: "
                "call monitor(model) again"
            )
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- what was seen ---

    @property
    def steps(self) -> list[int]:
        """The numbers of the observed steps that are kept."""
        return [step.number for step in self._kept]

    def table(self, step: int = -1) -> list[LayerStats]:
        """The layers of one step, activations first; those that did not run are left out.

        Args:
            step: which of the kept ones, counted as in a list: -1 is the latest.

        Raises:
            IndexError: there are not so many.
        """
        if not -len(self._kept) <= step < len(self._kept):
            raise IndexError(f"expected one of {len(self._kept)} kept steps, got {step}")
        return self._settle()[step].table(self.layers)

    def column(self, name: str, kind: str = "activation") -> Tensor:
        """A column over all kept steps.

        Args:
            name: largest, rms, zeros, subnormal, headroom, nan or inf.
            kind: "activation" or "gradient".

        Returns:
            A float64 tensor [layers x steps]; NaN where a layer did not run or got no gradient, and
            for largest, rms and headroom where nothing was finite.

        Raises:
            ValueError: another name or kind.
        """
        check_one_of("the column", name, COLUMNS)
        check_one_of("kind", kind, KINDS)
        kept, first = self._settle(), KINDS.index(kind) * len(self.layers)
        values = [
            [getattr(step.stats(first + i, ""), name, math.nan) for step in kept]
            for i in range(len(self.layers))
        ]
        return torch.tensor(values, dtype=torch.float64)

    def to_tensorboard(
        self,
        writer: Any,
        tag: str = "monitor",
        last: int | None = None,
        columns: str | Sequence[str] = COLUMNS,
        kinds: str | Sequence[str] = KINDS,
    ) -> None:
        """writer.add_scalar("tag/kind/column/layer", value, step) for what was seen and not yet
        written there: it can be called again and again, each call goes on after the one before.

        Args:
            writer: a torch.utils.tensorboard.SummaryWriter, or any object with add_scalar.
            tag: what the names begin with.
            last: only so many of the latest steps; what is passed over is not written later.
            columns, kinds: one or several, as in column().

        Raises:
            TypeError: a writer without add_scalar; last no integer.
            ValueError: another column or kind; last below 1.
        """
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"expected a writer with add_scalar, got {type(writer).__name__}")
        names, chosen = _chosen("the column", columns, COLUMNS), _chosen("kind", kinds, KINDS)
        if last is not None:
            check_whole("last", last, 1)
        _, done = self._written.setdefault(id(writer), (writer, {}))
        for step in list(self._settle())[-last if last else 0 :]:
            for stats in step.table(self.layers):
                for name in names if stats.kind in chosen else ():
                    path = f"{tag}/{stats.kind}/{name}/{stats.layer}"
                    if done.get(path, -1) < step.number:
                        writer.add_scalar(path, getattr(stats, name), step.number)
                        done[path] = step.number

    def plot(self, column: str = "largest", kind: str = "activation") -> Figure:
        """A heat map layer x step, with a cross where there were NaN or infinities, and colours of
        their own where nothing was finite, where all was zero and where nothing was read.

        Args:
            column, kind: as in column(); largest and rms on a logarithmic scale.

        Raises:
            ValueError: another column or kind.
            ImportError: matplotlib is not installed.
        """
        from .plot import heat_map

        values = self.column(column, kind)
        bad = (self.column("nan", kind) + self.column("inf", kind)).nan_to_num()
        return heat_map(values, bad, self.layers, self.steps, column, kind)

    # --- as a report ---

    def summary(self) -> str:
        if not self._kept:
            return "no step seen: give monitor the module that is called, in training mode"
        kept, layers = _count(len(self._kept), "step"), _count(len(self.layers), "layer")
        verdict = verdict_on(self._settle(), self.layers)
        return f"{kept} kept of {self.seen}, {layers}: {verdict}"

    def columns(self) -> Sequence[str]:
        return "step", *LayerStats._fields

    def rows(self) -> Sequence[Sequence[object]]:
        """Of the first step that is not finite, or else of the latest."""
        kept = self._settle()
        bad = (step for step in kept if step.culprit(self.layers))
        shown = next(bad, kept[-1] if kept else None)
        table = shown.table(self.layers) if shown else []
        return [[shown.number, *map(_short, stats)] for stats in table if shown]

    def to_dict(self) -> dict[str, Any]:
        """Every column as [layers x steps]; None where nothing was read."""
        facts = {"every": self.every, "seen": self.seen, "steps": self.steps}
        kinds = {kind: {name: self._plain(name, kind) for name in COLUMNS} for kind in KINDS}
        return {**facts, "layers": list(self.layers), **kinds}

    def _plain(self, name: str, kind: str) -> list[list[float | None]]:
        lines: list[list[float]] = self.column(name, kind).tolist()
        return [[None if math.isnan(value) else value for value in line] for line in lines]

    def figures(self) -> list[tuple[str, Figure]]:
        seen = [kind for kind in KINDS if not self.column("nan", kind).isnan().all()]
        captions = {kind: f"Largest finite magnitude of each {kind}" for kind in seen}
        return [(caption, self.plot("largest", kind)) for kind, caption in captions.items()]


def _chosen(what: str, given: str | Sequence[str], known: Sequence[str]) -> Sequence[str]:
    chosen = [given] if isinstance(given, str) else list(given)
    for one in chosen:
        check_one_of(what, one, known)
    return chosen


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(cell: object) -> object:
    if not isinstance(cell, float):
        return cell
    return "-" if math.isnan(cell) else float(f"{cell:.4g}")
