"""Indices of classes and rows: do they exist, and does a loss look at them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .batch import Leaf
from .findings import AuditFinding, error, warning
from .passing import Passed

IGNORED = -100  # torch's ignore_index


def beyond(
    index: Tensor, size: int, ignored: int | None, what: str, where: str, batch: list[Leaf]
) -> AuditFinding | None:
    """The finding if an index is outside of 0 .. size - 1; it names the part of the batch that
    holds the first of these, or `where` it was used."""
    outside = (index < 0) | (index >= size)
    if ignored is not None:
        outside &= index != ignored
    found = index[outside]
    if not found.numel():
        return None
    first = int(found[0])
    holders = [leaf.name for leaf in batch if _holds(leaf.tensor, first)]
    how_bad = f"index {first}, but {what} (0 to {size - 1}); {found.numel()} of {index.numel()}"
    remedy = "mend the labels or ids, or make the layer larger; -100 is ignored by torch's losses"
    return error(holders[0] if holders else where, "class index", first, how_bad, remedy)


def all_ignored(
    target: Tensor, ignored: int, mean: bool, where: str, batch: list[Leaf]
) -> AuditFinding | None:
    """The finding if a loss looks at no target; it names the part of the batch that has no other,
    or `where` it was used. The mean of nothing is NaN, the sum is 0."""
    if not target.numel() or not bool((target == ignored).all()):
        return None
    whole = [leaf for leaf in batch if _is_integer(leaf.tensor) and leaf.tensor.numel()]
    holders = [leaf.name for leaf in whole if bool((leaf.tensor == ignored).all())]
    result = "torch's mean loss is NaN" if mean else "the loss is 0 and nothing is learnt"
    how_bad = f"all {target.numel()} targets are {ignored}, which the loss ignores: {result}"
    remedy = "drop such batches, or look at how the labels are made (masked, cut off, shifted)"
    make = error if mean else warning
    name = holders[0] if holders else where
    return make(name, "ignored targets", target.numel(), how_bad, remedy)


def _holds(tensor: Tensor, value: int) -> bool:
    return _is_integer(tensor) and bool((tensor == value).any())


def _is_integer(value: Any) -> bool:
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return isinstance(value, Tensor) and value.dtype in integers and not value.is_meta


def of_targets(output: Any, passed: Passed, batch: list[Leaf]) -> Iterator[AuditFinding]:
    """The integer target whose shape is that of the outputs without the classes; of several,
    which may be lengths or places in the data, nobody knows."""
    scores = _scores(output)
    targets = [target for target in tree_leaves(list(passed.targets)) if _is_integer(target)]
    fitting = [(t, size) for t in targets if scores is not None and (size := _classes(scores, t))]
    if len(fitting) == 1:
        target, size = fitting[0]
        holders = [leaf for leaf in batch if leaf.tensor is target]
        what = f"the model's output has {size} classes"
        found = beyond(target, size, IGNORED, what, "batch", holders)
        if found := found or all_ignored(target, IGNORED, True, "batch", holders):
            yield found


def _scores(output: Any) -> Tensor | None:
    """The tensor itself, "logits" of a mapping, or the first tensor."""
    if isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        return output["logits"]
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    return tensors[0] if tensors and tensors[0].is_floating_point() else None


def _classes(scores: Tensor, target: Tensor) -> int:
    """How many, 0 if the shapes tell of none: scores (N, C, ...) as torch's losses take them, or
    (N, ..., C) as language models give them."""
    sizes = [
        scores.shape[dim]
        for dim in (1, -1)
        if scores.dim() > 1 and _without(scores.shape, dim) == tuple(target.shape)
    ]
    return max((size for size in sizes if size > 1), default=0)


def _without(shape: torch.Size, dim: int) -> tuple[int, ...]:
    place = dim % len(shape)
    return tuple(shape[:place] + shape[place + 1 :])
