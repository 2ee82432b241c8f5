"""What torch says of an operation, and what is in a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._multi_tensor import read_one
from ..._route import is_legacy_batched

_RAW_MEMORY = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    "_efficientzerotensor",
}
_OTHER_SPACES = (
    "c10d",
    "fsdp",
    "_c10d_functional",
    "_c10d_functional_autograd",
    "profiler",
    "prim",
)
_RESHAPED = {"resize_", "resize_as_", "set_"}  # memory that nobody has computed
_PLAIN = (Tensor, torch.nn.Parameter)
_UNDECLARED = {"native_batch_norm": (3, 4), "_batch_norm_impl_index": (3, 4)}


class Facts(NamedTuple):
    """name: of the operation. passes: it makes no values of its own (a view, a collective that has
    not ended yet). raw: it gives memory as it is. written: positions of the arguments that it
    writes. keeps: results after the first are for its backward, and may be infinite."""

    name: str
    passes: bool
    raw: bool
    written: tuple[int, ...]
    keeps: bool


UNKNOWN = Facts("", True, False, (), False)


def facts_of(func: Any) -> Facts:
    space, name = func._schema.name.split("::")
    written = [
        i for i, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write
    ]
    aliases = [r.alias_info for r in func._schema.returns if r.alias_info]
    is_view = bool(aliases) and not any(alias.is_write for alias in aliases)
    passes = is_view or space in _OTHER_SPACES or name in _RESHAPED
    keeps = "attention" in name or "ctc_loss" in name
    return Facts(name, passes, name in _RAW_MEMORY, (*written, *_UNDECLARED.get(name, ())), keeps)


def argument(func: Any, place: int, args: tuple, kwargs: dict[str, Any]) -> Any:
    if place < len(args):
        return args[place]
    return kwargs.get(func._schema.arguments[place].name)


def arguments(func: Any, args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of all that were given."""
    for place, wanted in enumerate(func._schema.arguments):
        value = argument(func, place, args, kwargs)
        if value is not None:
            yield wanted.name, value


def tensors_in(value: Any) -> list[Tensor]:
    """Of an argument or a result: a tensor, or a sequence that may hold some."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def values_of(tensor: Tensor) -> Tensor:
    """The memory that can be read: below function transforms, of a local shard, of a sparse
    tensor."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor


def local(value: Any) -> Any:
    """The same with all tensors as memory that can be read."""
    if isinstance(value, Tensor):
        return values_of(value)
    return [local(part) for part in value] if isinstance(value, (tuple, list)) else value


def is_inexact(tensor: Tensor) -> bool:
    """Of a dtype that has a NaN, in one piece."""
    return (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_nested


def is_bad(tensor: Tensor) -> bool:
    """Whether it holds a NaN or an infinity; no, where its values cannot be read."""
    if not is_inexact(tensor) or is_legacy_batched(tensor):
        return False
    readings = read_one(tensor)
    if readings is not None:
        return bool(readings.bad)
    tensor = values_of(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_meta or type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return False
    total = tensor.sum(dtype=torch.float32 if tensor.element_size() < 4 else None).item()
    return not math.isfinite(abs(total)) and not bool(torch.isfinite(tensor).all())
