"""How a batch reaches a model: which parts are arguments of its forward, which are targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

LABELS = ("labels", "label", "targets", "target", "y")
Forward = Callable[[nn.Module, Any], Any]


class Passed(NamedTuple):
    """call runs the model; names are those of the arguments; targets may be class indices."""

    call: Callable[[], Any]
    names: Mapping[str, Any]
    targets: Sequence[Any]


def passed(model: nn.Module, batch: Any, forward: Forward | None) -> Passed:
    """A tensor is model(batch); a tuple or list model(*batch), or its first item the input and the
    others targets; a mapping model(**batch), without what the model does not take."""
    if forward is not None:
        targets = _labels(batch) if isinstance(batch, Mapping) else []
        behind = list(batch[1:]) if isinstance(batch, (tuple, list)) else []
        return Passed(lambda: forward(model, batch), {}, targets + behind)
    if isinstance(batch, Mapping) and all(isinstance(key, str) for key in batch):
        return _by_name(model, dict(batch))
    if isinstance(batch, (tuple, list)):
        return _in_order(model, list(batch))
    return Passed(lambda: model(batch), {}, [])


def _labels(named: Mapping[str, Any]) -> list[Any]:
    return [value for name, value in named.items() if name in LABELS]


def _by_name(model: nn.Module, batch: dict[str, Any]) -> Passed:
    taken = _signature(model)
    known = [] if taken is None else list(taken.parameters)
    every = taken is None or any(p.kind is p.VAR_KEYWORD for p in taken.parameters.values())
    given = {key: value for key, value in batch.items() if every or key in known}
    targets = _labels(batch) or [batch[key] for key in batch if key not in given]
    return Passed(lambda: model(**given), given, targets)


def _in_order(model: nn.Module, batch: list[Any]) -> Passed:
    taken = _signature(model)
    try:
        names = {} if taken is None else dict(taken.bind(*batch).arguments)
    except TypeError:
        return Passed(lambda: model(*batch[:1]), {}, batch[1:])
    return Passed(lambda: model(*batch), names, _labels(names))


def _signature(model: nn.Module) -> inspect.Signature | None:
    """Of the forward, also of a compiled or distributed model."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    inner = model.module if isinstance(model, wrappers) else getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return _signature(inner)
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None
