"""One forward, watched: what activations do, which classes and rows do not exist."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..._reports import TensorStats
from ..._where import EAGERLY, RunningModule
from .activations import Activation, of_activations, of_outputs, share_of_dead, share_of_ends
from .batch import Leaf
from .findings import AuditFinding, error, read
from .passing import Passed
from .targets import IGNORED, all_ignored, beyond, of_targets
from .untouched import untouched

Function = Callable[..., Any]


def _named(*names: str) -> set[Function]:
    """torch's functions of these names, wherever they can be called."""
    places = (torch, F, Tensor)
    return {getattr(place, name) for place in places for name in names if hasattr(place, name)}


NONLINEARITIES: dict[Function, str] = {
    **dict.fromkeys(_named("relu", "relu_", "relu6"), "relu"),
    **dict.fromkeys(_named("tanh", "tanh_"), "tanh"),
    **dict.fromkeys(_named("sigmoid", "sigmoid_"), "sigmoid"),
}
LOSSES = {F.cross_entropy, F.nll_loss}
TABLES = {F.embedding, F.embedding_bag}
SOFTMAXES = _named("softmax", "log_softmax")
CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase)


class Stopped(Exception):
    """The forward would index what does not exist, which on a GPU ends the process; or its loss
    would be of nothing."""


class Seen(NamedTuple):
    """What a forward showed."""

    findings: list[AuditFinding]
    activations: list[Activation]


def watched(
    model: nn.Module, batch: list[Leaf], passed: Passed, clean: bool, arrays: dict[str, Any]
) -> Seen:
    """Run the forward once. If weights and batch are not `clean`, outputs that are not finite
    have their cause already; `arrays`, by name, are a cause of an exception."""
    watch = _Watch(model, batch)
    try:
        with untouched(model), EAGERLY, watch.outputs(), watch.where, watch:
            output = passed.call()
        watch.findings += of_targets(output, passed, batch)
    except Stopped:
        pass
    except Exception as raised:  # whatever a user's model raises
        watch.findings += _failed(raised, arrays)
    clean = clean and not watch.findings
    findings = [*watch.findings, *of_activations(watch.activations)]
    return Seen([*findings, *of_outputs(watch.rows, clean)], watch.activations)


def _failed(raised: Exception, arrays: dict[str, Any]) -> Iterator[AuditFinding]:
    text = f"{type(raised).__name__}: {raised}".strip()
    for name, array in arrays.items():
        how_bad = f"a numpy array of {array.dtype}; the model raised {text}"
        remedy = "convert with torch.from_numpy(array)" + ".float()" * (array.dtype.kind == "f")
        yield error(name, "not a tensor", 1, how_bad, remedy)
    if not arrays:
        remedy = "make model(batch) run; forward=lambda model, batch: ... says how it is passed"
        yield error("forward", "forward failed", 1, text, remedy)


class _Watch(TorchFunctionMode):
    """Sees functions as they are called, also from within torch's own modules."""

    def __init__(self, model: nn.Module, batch: list[Leaf]):
        super().__init__()
        self.model, self.batch = model, batch
        self.where, self.thread = RunningModule(model), threading.get_ident()
        self.findings: list[AuditFinding] = []
        self.activations: list[Activation] = []
        self.rows: list[TensorStats] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._last: nn.Module | None = None  # the layer that ended last

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOSSES:
            self._loss(*args, **kwargs)
        elif func in TABLES:
            self._table(*args, **kwargs)
        elif func in SOFTMAXES:
            self._softmax(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in NONLINEARITIES and isinstance(result, Tensor):
            self._activation(NONLINEARITIES[func], result.detach())
        return result

    @property
    def _name(self) -> str:
        return self.where.name or "the model"

    # --- indices and masks ---------------------------------------------------------------------

    def _loss(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = IGNORED,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        if not target.is_floating_point():
            classes = input.shape[1 if input.dim() > 1 else 0]
            what = f"the loss in {self._name} has {classes} classes"
            self._stop_beyond(target, classes, ignore_index, what)
            mean = reduction == "mean"
            self._stop_if(all_ignored(target, ignore_index, mean, self._name, self.batch))

    def _table(self, input: Any, weight: Any, *rest: Any, **more: Any) -> None:
        self._stop_beyond(input, weight.shape[0], None, f"{self._name} has {weight.shape[0]} rows")

    def _stop_beyond(self, index: Tensor, size: int, ignored: int | None, what: str) -> None:
        self._stop_if(beyond(index, size, ignored, what, self._name, self.batch))

    def _stop_if(self, finding: AuditFinding | None) -> None:
        if finding:
            self.findings.append(finding)
            raise Stopped

    def _softmax(self, input: Any, dim: Any = None, *rest: Any, **more: Any) -> None:
        if not (isinstance(input, Tensor) and isinstance(dim, int)) or not input.numel():
            return
        rows = int((input == -torch.inf).all(dim).sum())
        if rows and all(finding.where != self._name for finding in self.findings):
            how_bad = f"{rows} rows of its softmax are -inf throughout and become NaN"
            remedy = "safeops.softmax(x, dim, mask=mask), or safeops.swap_(model)"
            self.findings.append(error(self._name, "masked row", rows, how_bad, remedy))

    # --- outputs -------------------------------------------------------------------------------

    def _activation(self, kind: str, result: Tensor) -> None:
        if not result.is_floating_point() or result.dim() < 2 or not result.numel():
            return
        self._calls[self._name, kind] += 1
        call = self._calls[self._name, kind]
        where = self._name + (f" (call {call})" if call > 1 else "")
        if kind != "relu":
            found = share_of_ends(result, kind)
        else:
            found = share_of_dead(result, isinstance(self._last, CHANNELS_FIRST))
        self.activations.append(Activation(where, kind, *found))

    @contextmanager
    def outputs(self) -> Iterator[None]:
        """What leaves a layer is read at once, before anything writes over it."""
        hook = register_module_forward_hook(self._ended)
        try:
            yield
        finally:
            hook.remove()

    def _ended(self, module: nn.Module, args: Any, output: Any) -> None:
        known = module in self.where.names and threading.get_ident() == self.thread
        if not known or (module._modules and module is not self.model):
            return
        name, self._last = self.where.names[module] or "the model", module
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        names = (f"{name}[{i}]" if i else name for i in range(len(tensors)))
        self.rows += read(zip(names, tensors, strict=True)).rows.values()
