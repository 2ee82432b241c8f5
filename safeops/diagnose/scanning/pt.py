"""Tensors of .pt, .pth and .bin files, as torch.save writes them since 1.6 and before.

Source: torch/serialization.py (_save, _legacy_save) and torch/_utils.py (the functions that a file
wants called to rebuild a tensor; here their arguments are read).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from .bytes import Archive, Bytes, Part, ScanError
from .names import Global
from .pickles import SIZE, Call, Pairs, Persistent, read
from .stored import Stored, as_shape, dtype_named, name_of
from .views import elements, view_of
from .walk import walk

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the first pickle of a file before 1.6
STORAGES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "ComplexHalf": torch.complex32,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "Untyped": torch.uint8,
    "QInt8": torch.int8,
    "QInt32": torch.int32,
    "QUInt8": torch.uint8,
    "QUInt4x2": torch.uint8,
    "QUInt2x4": torch.uint8,
}
WRAPPED = (
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_device_tensor_from_cpu_tensor",
)
PLAIN = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
UNREAD = {  # why, and which argument is the shape
    "_rebuild_qtensor": ("quantized", 2),
    "_rebuild_sparse_tensor": ("sparse; its parts are listed", None),
    "_rebuild_nested_tensor": ("nested; its parts are listed", None),
    "_rebuild_meta_tensor_no_storage": ("a meta tensor has no data", 1),
    "_rebuild_wrapper_subclass": ("a tensor subclass without data of its own", None),
}
WORK = 64  # times the data of a file that its tensors may read; views of one storage share it


class Storage(NamedTuple):
    """Where the elements of tensors lie."""

    source: Bytes
    dtype: torch.dtype
    numel: int
    key: Any
    swapped: bool


Opener = Callable[[Any], Storage]  # of what a pickle says of a storage


def zipped(archive: Archive, prefix: str) -> list[Stored]:
    """Those of a zip whose pickle is at `prefix`data.pkl (and constants.pkl in TorchScript)."""
    swapped = False
    if prefix + "byteorder" in archive.entries:
        swapped = archive.open(prefix + "byteorder").head(8) == b"big"
    found: list[Stored] = []
    for part in ("data", "constants"):
        if f"{prefix}{part}.pkl" in archive.entries:
            text = archive.open(f"{prefix}{part}.pkl").head(SIZE + 1)
            found += _tensors(read(_stream(text)).root, _entries(archive, prefix + part, swapped))
    _check_work(found, sum(entry.file_size for entry in archive.entries.values()))
    return found


def _stream(text: bytes) -> io.BytesIO:
    if len(text) > SIZE:
        raise ScanError(f"expected a pickle of at most {SIZE} bytes: save tensors, not numbers")
    return io.BytesIO(text)


def _entries(archive: Archive, folder: str, swapped: bool) -> Opener:
    def opened(pid: Any) -> Storage:
        dtype, key, numel = _described(pid)
        source = archive.open(f"{folder}/{key}")
        if numel * dtype.itemsize > source.size:
            raise ScanError(
                f"expected {numel * dtype.itemsize} bytes in storage {key}, got {source.size}: the "
                "file is damaged; copy it again"
            )
        return Storage(source, dtype, numel, (folder, key), swapped)

    return opened


def legacy(file: Part) -> list[Stored]:
    """Those of a file as written before torch 1.6: five pickles, then the storages."""
    stream = io.BytesIO(file.head(SIZE))
    _, _, system, tree, keys = (read(stream) for _ in range(5))
    swapped = isinstance(system.root, Pairs) and ("little_endian", False) in system.root
    if not isinstance(keys.root, list):
        raise ScanError("expected a list of the storages, got none: the file is damaged")
    described = {given[1]: given for given in (_described(kept.pid) for kept in tree.persistent)}
    places = _places(file, stream.tell(), keys.root, described)

    def opened(pid: Any) -> Storage:
        dtype, key, numel = described[_described(pid)[1]]
        return Storage(places[key], dtype, numel, key, swapped)

    found = _tensors(tree.root, opened)
    _check_work(found, file.size)
    return found


def _places(
    file: Part, at: int, keys: list[Any], described: Mapping[str, tuple[torch.dtype, str, int]]
) -> Mapping[str, Part]:
    """The bytes of the storages, each after its number of elements."""
    places = {}
    for key in keys:
        if not isinstance(key, str) or key not in described:
            raise ScanError(f"a storage {str(key)[:60]!r} of which nothing is said: damaged")
        dtype, _, numel = described[key]
        given = int.from_bytes(file.part(at, 8).head(8), "little")
        if given != numel:
            raise ScanError(f"expected {numel} elements in storage {key}, got {given}: damaged")
        places[key] = file.part(at + 8, numel * dtype.itemsize)
        at += 8 + numel * dtype.itemsize
    if missing := sorted(described.keys() - places.keys()):
        raise ScanError(f"the file has no storage {missing[0]!r}: it is damaged; copy it again")
    return places


def _described(pid: Any) -> tuple[torch.dtype, str, int]:
    """Of a storage: dtype, key and number of elements."""
    if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
        _, kind, key, _, numel = pid[:5]
        name = kind.name.removesuffix("Storage") if isinstance(kind, Global) else ""
        if name in STORAGES and isinstance(key, str) and type(numel) is int and numel >= 0:
            return STORAGES[name], key, numel
    raise ScanError(f"a storage that torch.save does not write: {str(pid)[:80]}")


def _check_work(found: list[Stored], size: int) -> None:
    work = sum({tensor.key: tensor.size for tensor in found}.values())
    if work > WORK * (size + (1 << 20)):
        raise ScanError(
            f"tensors that read {work} bytes of a file that has {size}: it is damaged or meant to "
            "do harm"
        )


def _tensors(tree: Any, opener: Opener) -> list[Stored]:
    return list(walk(tree, lambda name, call: _rebuilt(name, call, opener)))


def _rebuilt(name: str, call: Call, opener: Opener) -> Stored | None:
    """The tensor that a call would make; None if it makes something else."""
    func, args = call.func, call.args
    if not isinstance(func, Global) or not isinstance(args, tuple):
        return None
    if str(func) == "torch._tensor._rebuild_from_type_v2" and len(args) > 2:
        return _rebuilt(name, Call(args[0], args[2]), opener)
    if func.module == "torch._utils" and func.name in WRAPPED:
        inner = args[0] if args else None
        return _rebuilt(name, inner, opener) if isinstance(inner, Call) else None
    if func.module != "torch._utils":
        return _array(name, func)
    if func.name in UNREAD:
        why, place = UNREAD[func.name]
        shape = as_shape(args[place], name) if place is not None and place < len(args) else ()
        return Stored(name, _dtype_in(args), shape, why=why)
    if func.name in PLAIN and len(args) >= 4:
        return _plain(name, args, opener)
    return None


def _array(name: str, func: Global) -> Stored | None:
    if func.module.endswith("core.multiarray") and func.name == "_reconstruct":
        return Stored(name, "", (), why="a NumPy array inside the pickle; save a tensor")
    return None


def _plain(name: str, args: tuple[Any, ...], opener: Opener) -> Stored:
    if not isinstance(args[0], Persistent):
        raise ScanError(f"{name}: expected a storage, got {type(args[0]).__name__}")
    storage = opener(args[0].pid)
    shape, strides = as_shape(args[2], name), as_shape(args[3], name)
    dtype, numel = storage.dtype, storage.numel
    if len(args) > 6 and isinstance(args[6], Global):  # v3: of an untyped storage
        named = dtype_named(args[6].name)
        if named is None:
            return Stored(name, args[6].name, shape, why="a dtype that is not known here")
        dtype, numel = named, numel // named.itemsize
    view = view_of(name, args[1], shape, strides, numel)
    label = name_of(dtype)
    if args[-1] and isinstance(args[-1], Pairs) and len(args) > 6:
        return Stored(name, label, shape, why="conjugated or negated lazily; resolve it first")
    if not view.dense and (view.overlaps or not isinstance(storage.source, Part)):
        return Stored(name, label, shape, why="a view with overlaps, or of deflated data")
    return Stored(
        *(name, label, shape, lambda: elements(storage.source, view, dtype, storage.swapped)),
        key=(storage.key, dtype, view[:3]),
        copies=view.copies,
        size=view.span * dtype.itemsize,
    )


def _dtype_in(args: tuple[Any, ...]) -> str:
    names = (arg.name for arg in args if isinstance(arg, Global) and arg.module == "torch")
    return next(names, "")
