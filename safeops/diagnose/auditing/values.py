"""Parameters, buffers and optimizer state: are the numbers themselves sound?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from ..._reports import TensorStats, counts_of
from .findings import AuditFinding, Read, error, few, largest_of, read, rms, unreadable, warning

MANY = 0.1  # of the elements that are not 0: below that, subnormals are the tail of a bell curve
SCALE = 1e3  # rms of a parameter; a layer's own gain is judged by its fan
REMEDIES = {
    "parameter": "initialise {0} again (its module's reset_parameters()) or load the last "
    "checkpoint that `safeops scan` finds finite",
    "buffer": "reset {0} (of a normalisation: reset_running_stats()) or load a checkpoint that "
    "`safeops scan` finds finite",
    "state": "make the optimizer anew, or optimizer.load_state_dict() of a finite checkpoint; "
    "safeops.clip_grad_norm_ keeps bad gradients out of it",
}
Named = tuple[str, Tensor]


def value_findings(model: nn.Module, optimizer: Any) -> tuple[list[AuditFinding], Read]:
    """And what was read of the parameters and buffers."""
    groups: dict[str, list[Named]] = {
        "parameter": list(model.named_parameters()),
        "buffer": list(model.named_buffers()),
        "state": list(state_tensors(model, optimizer)),
    }
    kinds = {name: kind for kind, pairs in groups.items() for name, _ in pairs}
    found = read(pair for pairs in groups.values() for pair in pairs)
    findings = [f for name, row in found.rows.items() for f in _of_row(kinds[name], row)]
    findings += [*_stale_gradients(model), *_negative_variances(model)]
    return [*findings, *_without_data(found, kinds)], found


def _stale_gradients(model: nn.Module) -> Iterator[AuditFinding]:
    """One finding for all: bad gradients are seldom alone."""
    pairs = [(f"{name}.grad", parameter.grad) for name, parameter in model.named_parameters()]
    there = [(name, gradient) for name, gradient in pairs if gradient is not None]
    bad = [row for row in read(there).rows.values() if row.bad]
    if bad:
        how_bad = f"{counts_of(bad[0])} of {bad[0].numel} in {bad[0].name}; {len(bad)} of "
        how_bad += f"{len(there)} gradients. backward() adds to them, step() writes them to weights"
        remedy = "optimizer.zero_grad(set_to_none=True) before the next backward()"
        yield error(few([row.name for row in bad]), "stale gradient", len(bad), how_bad, remedy)


def _negative_variances(model: nn.Module) -> Iterator[AuditFinding]:
    for path, module in model.named_modules():
        variance = dict(module.named_buffers(recurse=False)).get("running_var")
        if variance is None or unreadable(variance) or not variance.is_floating_point():
            continue
        if negative := int((variance < 0).sum()):
            name = f"{path}.running_var".lstrip(".")
            how_bad = (
                f"{negative} of {variance.numel()} below 0, least {float(variance.min()):.3g}: "
            )
            how_bad += "the square root in eval mode is NaN"
            remedy = (
                f'model.get_submodule("{path}").reset_running_stats(), or load a checkpoint in '
            )
            remedy += "which it is positive"
            yield error(name, "negative variance", negative, how_bad, remedy)


def state_tensors(model: nn.Module, optimizer: Any) -> Iterator[Named]:
    """Of an optimizer, as in "weight (exp_avg)"."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    states = {} if optimizer is None else getattr(optimizer, "state", {})
    for place, (parameter, state) in enumerate(states.items()):
        name = names.get(parameter, f"optimizer.state[{place}]")
        for path, leaf in tree_flatten_with_path(state)[0]:
            if isinstance(leaf, Tensor):
                yield f"{name} ({keystr(path).replace(chr(39), '').strip('[]')})", leaf


def _of_row(kind: str, row: TensorStats) -> Iterator[AuditFinding]:
    remedy = REMEDIES[kind].format(row.name)
    of = f"{counts_of(row)} of {row.numel}"
    if row.nan:
        yield error(row.name, "nan", row.nan, of, remedy)
    elif row.posinf or (row.neginf and not _is_mask(kind, row)):
        yield error(row.name, "inf", row.posinf + row.neginf, of, remedy)
    yield from _of_magnitudes(kind, row, remedy)


def _is_mask(kind: str, row: TensorStats) -> bool:
    """A buffer with two dimensions or more may hold -inf: causal masks do."""
    return kind == "buffer" and len(row.shape) > 1


def _of_magnitudes(kind: str, row: TensorStats, remedy: str) -> Iterator[AuditFinding]:
    share = row.subnormal / max(row.numel - row.zeros - row.bad, 1)
    if share > MANY and row.subnormal > 1:
        how_bad = f"{share:.0%} of what is not 0 is below the normal range of {_dtype(row)}"
        flush = "torch.set_flush_denormal(True) makes them 0 (they are slow and imprecise)"
        yield warning(row.name, "subnormal", share, how_bad, f"{flush}; in float16: use float32")
    if row.dtype is None or _is_mask(kind, row):
        return
    limit = largest_of(row.dtype) ** (0.5 if largest_of(row.dtype) > 1e5 else 0.9)
    if row.largest > limit:
        how_bad = f"largest {row.largest:.3g}, the range of {_dtype(row)} ends at "
        how_bad += f"{largest_of(row.dtype):.3g}"
        yield error(row.name, "huge", row.largest, how_bad, remedy)
    elif kind == "parameter" and rms(row) > SCALE:
        yield warning(row.name, "huge", rms(row), f"root mean square {rms(row):.3g}", remedy)


def _dtype(row: TensorStats) -> str:
    return str(row.dtype).removeprefix("torch.")


def _without_data(found: Read, kinds: dict[str, str]) -> Iterator[AuditFinding]:
    remedies = {
        "uninitialised": "run the model once on a batch, and make the optimizer after that",
        "no data": "model.to_empty(device=...), then load or initialise the weights",
    }
    for what, reason in ("uninitialised", "uninitialised"), ("no data", "meta"):
        names = [name for name, why in found.unread.items() if why == reason and name in kinds]
        if names:
            how_bad = f"{len(names)} tensor{'s' * (len(names) > 1)} could not be read"
            yield warning(few(names), what, len(names), how_bad, remedies[what])


def half_parameters(model: nn.Module) -> list[torch.dtype]:
    """The half dtypes that the model's parameters have."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return [dtype for dtype in (torch.float16, torch.bfloat16) if dtype in dtypes]
