"""Files for the tests of scan: healthy, with planted faults, damaged, hostile."""

import io
import pickle
import struct
import zipfile

import torch

WEIGHT = torch.tensor([[1.5, float("nan"), -2.0], [0.0, float("inf"), 1e-40]])
STEADY = torch.linspace(-1.0, 3.0, 5)
PICKLE_NAME = "archive/data.pkl"


def safetensors(tensors, header=None, tail=b""):
    """The bytes of a file, by the format's description; `header` changes what it says."""
    import json

    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    entries, data = {}, b""
    for name, x in tensors.items():
        raw = raw_bytes(x)
        ends = [len(data), len(data) + len(raw)]
        entries[name] = {
            "dtype": names[x.dtype],
            "shape": list(x.shape),
            "data_offsets": ends,
        }
        data += raw
    for name, entry in (header or {}).items():
        entries[name] = {**entries.get(name, {}), **entry}
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data + tail


def raw_bytes(x):
    buffer = bytearray(x.nbytes)
    if buffer:
        torch.frombuffer(buffer, dtype=x.dtype).copy_(x.flatten())
    return bytes(buffer)


def npy(x, descr, *, shape=None, fortran=False, data=None, version=1):
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape or tuple(x.shape)})
    head = (text + "\n").encode()
    length = struct.pack("<H" if version == 1 else "<I", len(head))
    body = raw_bytes(x) if data is None else data
    return b"\x93NUMPY" + bytes([version, 0]) + length + head + body


def npz(arrays, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def repacked(content, method=zipfile.ZIP_STORED, replace=None):
    """The zip anew, with another compression, or some entries replaced (None: left out)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for name in old.namelist():
            entry = (replace or {}).get(name, old.read(name))
            if entry is not None:
                new.writestr(name, entry)
    return buffer.getvalue()


def with_pickle(data):
    """A file of torch.save with one storage of 5 floats, and this pickle in place of its own."""
    return repacked(saved(STEADY), replace={PICKLE_NAME: data})


def storage(numel=5, kind=b"FloatStorage", key=b"0"):
    """The opcodes that push the storage."""
    text = lambda value: b"X" + struct.pack("<I", len(value)) + value  # noqa: E731
    number = b"\x8a\x08" + struct.pack("<q", numel)
    return (
        b"("
        + text(b"storage")
        + b"ctorch\n"
        + kind
        + b"\n"
        + text(key)
        + text(b"cpu")
        + (number + b"tQ")
    )


def rebuilt(offset, sizes, strides, pushed=None):
    """The pickle of one tensor, by _rebuild_tensor_v2."""
    head = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    rest = pickle.dumps((offset, sizes, strides), 2)[2:-1]
    return head + (storage() if pushed is None else pushed) + unpacked(rest) + b"\x89)tR."


def unpacked(rest):
    """The opcodes of a tuple of three, without those that make and keep it."""
    assert rest.endswith(b"\x87q\x02") or b"\x87" in rest
    return rest[: rest.rindex(b"\x87")]


HEALTHY = {
    "pt": lambda: saved({"steady": STEADY, "half": STEADY.half(), "step": torch.tensor(3)}),
    "legacy": lambda: saved({"steady": STEADY}, _use_new_zipfile_serialization=False),
    "deflated pt": lambda: repacked(saved({"steady": STEADY}), zipfile.ZIP_DEFLATED),
    "safetensors": lambda: safetensors({"steady": STEADY, "half": STEADY.half()}),
    "npy": lambda: npy(STEADY, "<f4"),
    "npz": lambda: npz({"steady": npy(STEADY, "<f4")}),
    "deflated npz": lambda: npz({"steady": npy(STEADY, "<f4")}, zipfile.ZIP_DEFLATED),
}
