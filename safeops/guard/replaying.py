"""A bad step once more, under detect, which names the culprit; at once, or later from a dump."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .._arguments import check_callable, check_model
from .._random import set_random_state
from ..diagnose import Detection, Finding, detect
from .attempt import check_loss
from .judge import listed
from .packing import unpacked
from .settings import as_list, check_optimizers
from .state import KINDS, Parts, State
from .storage import DUMP

CLEAN = (
    "run again, all was finite: not reproducible, as a fault of the hardware, a data race, or "
    "something outside of the closure"
)


class Replay(NamedTuple):
    finding: Finding | None = None
    text: str = ""


def replayed(model: nn.Module, step: int, again: Callable[[], object]) -> Replay:
    """again() under detect; that it fails is told, not raised."""
    found: Detection = detect(model)
    try:
        with found:
            again()
    except Exception as error:
        if found.first is None:
            return Replay(None, f"the replay failed: {type(error).__name__}: {error}")
    if found.first is None:
        return Replay(None, CLEAN)
    finding = replace(found.first, step=step)
    line = f" ({finding.source}: {finding.source.text})" if finding.source.file else ""
    return Replay(finding, f"{finding.summary()}{line}; {finding.remedy}")


def replay(path: str | os.PathLike[str], setup: Callable[[], Any]) -> Detection:
    """Run the bad step of a dump again under `safeops.diagnose.detect`, in any process.

    Args:
        path: a file that a Guard wrote into its dump_dir.
        setup: gives (model, step) or (model, step, optimizer): a model with the parameters of the
            one that was trained, and a function of a batch that gives the loss. Weights, buffers,
            optimizer states and random numbers are those of the dump; with an optimizer its step
            is made, too.

    Returns:
        A Detection: ``.first`` is the culprit, None if all was finite this time.

    Raises:
        ValueError: the file is no dump, or does not fit the model. TypeError: setup gives
            something else.

    Source: safeops.diagnose.detect.
    """
    dump = _read(Path(path))
    model, step, optimizers = _made(setup())
    parts = Parts(model, optimizers, [], None, [], None)
    state = dump["state"] | {"schedulers": [], "others": [], "data": None}
    kinds = [state["kinds"][0] if optimizers else "none", *["none"] * (len(KINDS) - 1)]
    state |= {"kinds": kinds} if optimizers else {"kinds": kinds, "optimizers": []}
    if misfits := parts.misfits(state):
        raise ValueError(f"{path} does not fit the model of setup: {listed(misfits)}")
    parts.load(state)
    if dump["random"] is not None:
        set_random_state(dump["random"])
    return _run(model, step, optimizers, dump["batches"])


def _read(path: Path) -> State:
    try:
        dump = unpacked(torch.load(path, weights_only=True, map_location="cpu"))
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"expected a dump of a safeops.Guard, got {path}: {error}") from error
    if not isinstance(dump, dict) or dump.get("kind") != DUMP:
        raise ValueError(f"expected a dump of a safeops.Guard, got another file: {path}")
    return dump


def function_in(script: Path, name: str) -> Callable[[], Any]:
    """A function of a file, which is run as a module that is not the main one.

    Raises:
        ValueError: it has no such function, or it fails.
    """
    spec = spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(script.stem, module)  # as dataclasses and pickle look for it
    sys.path.insert(0, str(script.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{script} fails: {type(error).__name__}: {error}") from error
    if not callable(function := getattr(module, name, None)):
        raise ValueError(f"expected a function {name} in {script}, got {function!r:.40}")
    return function


def _made(given: Any) -> tuple[nn.Module, Callable[[Any], Tensor], list[torch.optim.Optimizer]]:
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise TypeError(
            f"expected setup to give (model, step) or (model, step, optimizer), "
            f"got {type(given).__name__}"
        )
    model, step, *rest = given
    check_model(model)
    check_callable("step", step)
    optimizers = [one for part in rest for one in as_list(part)]
    if optimizers:
        check_optimizers(optimizers)
    return model, step, optimizers


def _run(model: nn.Module, step: Any, optimizers: list[Any], batches: list[Any]) -> Detection:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with detect(model) as found:
        for batch in batches or [None]:
            loss = check_loss(step(tree_map(lambda one: _moved(one, device), batch)))
            (loss / max(len(batches), 1)).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    return found


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
