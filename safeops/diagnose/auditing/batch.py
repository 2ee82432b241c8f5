"""A batch of any structure: are the numbers sound, and what a model expects?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from ..._reports import TensorStats, counts_of
from .findings import AuditFinding, error, largest_of, read, rms, warning
from .passing import Passed
from .values import half_parameters

FEW = 8  # rows: columns of fewer are constant by chance
RANGE = 1e-3, 30.0  # of the root mean square; 1 when standardised
LINE = 1e4  # for a tensor of one dimension, which may hold times, lengths or weights
OFFSET = 100.0  # |mean| / standard deviation
FILLED = -1e4  # a mask that is added has nothing between that and 0


class Leaf(NamedTuple):
    """A tensor of the batch: how a user reaches it, and what the model calls it, or ""."""

    name: str
    tensor: Tensor
    called: str


def leaves(batch: Any, passed: Passed) -> list[Leaf]:
    """The tensors of a nested structure."""
    called = {id(value): name for name, value in passed.names.items()}
    found = []
    for path, leaf in _flattened(batch):
        if isinstance(leaf, Tensor):
            key = str(getattr(path[-1], "key", "")) if path else ""
            found.append(Leaf(f"batch{keystr(path)}", leaf, called.get(id(leaf), key)))
    return found


def arrays(batch: Any) -> dict[str, Any]:
    """The numpy arrays in it that torch.from_numpy takes."""
    given = ((f"batch{keystr(path)}", leaf) for path, leaf in _flattened(batch))
    return {name: leaf for name, leaf in given if _is_array(leaf)}


def _is_array(leaf: Any) -> bool:
    """Without an import of numpy, which torch can do without."""
    return type(leaf).__name__ == "ndarray" and leaf.dtype.kind in "biufc"


def _flattened(batch: Any) -> list[tuple[Any, Any]]:
    whole = dict(batch) if isinstance(batch, Mapping) else batch  # also of a class unknown to torch
    return tree_flatten_with_path(whole)[0]


def batch_findings(model: nn.Module, batch: list[Leaf]) -> list[AuditFinding]:
    """Of the numbers alone; what depends on the model's run is found there."""
    rows = read((leaf.name, leaf.tensor) for leaf in batch).rows
    findings: list[AuditFinding] = []
    for leaf in batch:
        if row := rows.get(leaf.name):
            findings += _of_floats(leaf, row, half_parameters(model))
        elif not leaf.tensor.is_floating_point() and not leaf.tensor.is_complex():
            findings += _of_a_mask(leaf)
    return findings


def _of_floats(leaf: Leaf, row: TensorStats, half: list[torch.dtype]) -> Iterator[AuditFinding]:
    of, dense = f"{counts_of(row)} of {row.numel}", leaf.tensor.layout is torch.strided
    remedy = "drop these samples, or torch.nan_to_num / safeops.finite_clip(x, nan=0.0) them"
    if row.nan:
        yield error(leaf.name, "nan", row.nan, of, remedy)
    elif dense and _is_additive_mask(leaf.tensor, row):
        yield from _masked_rows(leaf, _is_filled(leaf.tensor))
    elif row.posinf + row.neginf:
        yield error(leaf.name, "inf", row.posinf + row.neginf, of, remedy)
    elif dense and row.numel and not leaf.tensor.is_complex():
        yield from _of_range(leaf, row, half)


def _of_range(leaf: Leaf, row: TensorStats, half: list[torch.dtype]) -> Iterator[AuditFinding]:
    for dtype in half:
        if row.largest > largest_of(dtype):
            name = str(dtype).removeprefix("torch.")
            how_bad = f"largest {row.largest:.3g}; {name} ends at {largest_of(dtype):.3g}"
            yield error(leaf.name, "overflow", row.largest, how_bad, _standardise(leaf.tensor))
            return
    if not _is_indicator(leaf.tensor, row):
        yield from _scale(leaf, row)
        yield from _constant_columns(leaf)


def _is_indicator(tensor: Tensor, row: TensorStats) -> bool:
    """Nothing but 0 and 1: masks, labels, one-hot rows."""
    return row.largest in (0.0, 1.0) and bool(((tensor == 0) | (tensor == 1)).all())


# --- masks -------------------------------------------------------------------------------------


def _is_filled(tensor: Tensor) -> Tensor:
    return tensor <= FILLED


def _is_additive_mask(tensor: Tensor, row: TensorStats) -> bool:
    """0, and one number far below it, -inf or finfo.min."""
    if tensor.is_complex() or row.posinf or not (row.neginf or row.largest >= -FILLED):
        return False
    filled = _is_filled(tensor)
    return bool((filled | (tensor == 0)).all()) and bool(filled.any())


def _of_a_mask(leaf: Leaf) -> Iterator[AuditFinding]:
    """Whether True, or 1, says that a position takes part is a matter of the mask's name: torch's
    padding masks say the contrary. Other masks are taken by what most of their positions say."""
    tensor, name = leaf.tensor, leaf.called
    if tensor.dim() < 2 or not tensor.numel() or not _is_boolean(tensor, name):
        return
    ones = tensor != 0
    hides = "padding_mask" in name or (
        "attention_mask" not in name and float(ones.float().mean()) < 0.5
    )
    yield from _masked_rows(leaf, ones if hides else ~ones)


def _is_boolean(tensor: Tensor, name: str) -> bool:
    if tensor.dtype is torch.bool:
        return "mask" in name or not name
    zero_or_one = "attention_mask" in name or "padding_mask" in name
    return zero_or_one and bool(((tensor == 0) | (tensor == 1)).all())


def _masked_rows(leaf: Leaf, masked: Tensor) -> Iterator[AuditFinding]:
    rows = int(masked.all(-1).sum()) if masked.dim() > 1 else 0
    if rows:
        of = masked.numel() // masked.shape[-1]
        how_bad = f"{rows} of {of} rows have every position masked: torch's softmax gives NaN there"
        remedy = "drop empty samples, keep one position, or use safeops.softmax(x, dim, mask=mask)"
        yield warning(leaf.name, "masked row", rows, how_bad, remedy)


# --- range -------------------------------------------------------------------------------------


def _scale(leaf: Leaf, row: TensorStats) -> Iterator[AuditFinding]:
    """Far from mean 0 and standard deviation 1, a column of it or the whole."""
    low, high = (0.0, LINE) if leaf.tensor.dim() < 2 else RANGE
    size = rms(row)
    if size and not low <= size <= high:
        how_bad = f"root mean square {size:.3g}; with mean 0 and standard deviation 1 it is 1"
        yield warning(leaf.name, "range", size, how_bad, _standardise(leaf.tensor))
    elif leaf.tensor.dim() == 2 and len(leaf.tensor) >= FEW:
        yield from _columns_out_of_range(leaf)


def _columns_out_of_range(leaf: Leaf) -> Iterator[AuditFinding]:
    x = leaf.tensor.detach().double()
    deviation, mean = torch.std_mean(x, 0, correction=0)
    varies = (x != x[:1]).any(0)
    size = x.square().mean(0).sqrt()
    out = (size > RANGE[1]) | ((size < RANGE[0]) & (size > 0)) | (mean.abs() > OFFSET * deviation)
    columns = (out & varies).nonzero().flatten().tolist()
    if columns:
        first = columns[0]
        how_bad = f"{_listed(columns)} of {x.shape[1]}; column {first} has mean {mean[first]:.3g} "
        how_bad += f"and standard deviation {deviation[first]:.3g}"
        yield warning(leaf.name, "range", len(columns), how_bad, _standardise(leaf.tensor))


def _constant_columns(leaf: Leaf) -> Iterator[AuditFinding]:
    """Features of a table, channels of images."""
    x = leaf.tensor
    if x.dim() not in (2, 4, 5) or len(x) < FEW or 0 in x.shape:
        return
    columns = x.transpose(0, 1).reshape(x.shape[1], -1)
    constant = (columns == columns[:, :1]).all(1).nonzero().flatten().tolist()
    if constant:
        how_bad = f"{_listed(constant)} of {x.shape[1]} never change: deviation 0, x / 0 is NaN"
        remedy = "leave them out, or standardise with safeops.safe_div(x - mean, deviation)"
        yield warning(leaf.name, "constant column", len(constant), how_bad, remedy)


def _listed(columns: list[int]) -> str:
    more = f" and {len(columns) - 3} more" if len(columns) > 3 else ""
    shown = ", ".join(map(str, columns[:3]))
    return f"column{'s' * (len(columns) > 1)} {shown}{more}"


def _standardise(x: Tensor) -> str:
    """The call, with the mean and deviation of the training data where the model's input is a
    table, of each channel where it is an image."""
    dims = {4: "(0, 2, 3), keepdim=True", 5: "(0, 2, 3, 4), keepdim=True"}.get(x.dim(), "0")
    mean, deviation = f"x.mean({dims})", f"x.std({dims})"
    return f"x = safeops.safe_div(x - {mean}, {deviation}), both of the training data"
