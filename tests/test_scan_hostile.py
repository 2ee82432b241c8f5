"""Pickles and zips that mean harm: refused or read as data, never run, in little memory."""

import os
import pickle
import struct
import sys
import tracemalloc
import zipfile

import pytest
import torch

from safeops.diagnose.scanning import pickles, pt
from safeops.diagnose.scanning.scan import scan
from tests.scan_files import STEADY, npy, npz, rebuilt, saved, storage, with_pickle
from tests.scanned import error, one, scanned


class Evil:
    """Its pickle calls func(*args)."""

    def __init__(self, func, *args):
        self.call = func, args

    def __reduce__(self):
        return self.call


PLANTED = "planted"


def plant():
    sys.modules[__name__].PLANTED = "run"


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (os.system, ("touch /tmp/never",)),
        (eval, ("1",)),
        (exec, ("1",)),
        (__import__, ("os",)),
        (open, ("never", "w")),
        (pickle.loads, (b"",)),
        (sys.exit, ()),
    ],
)
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_attacks_are_refused(func, args, options):
    message = error(saved({"x": STEADY, "e": Evil(func, *args)}, **options))
    assert message.startswith("refused: this pickle would run ")
    assert "weights_only" in message


@pytest.mark.parametrize(
    "call",
    [
        b"cposix\nsystem\n(X\x04\0\0\0truetR",
        b"(iposix\nsystem\n",
        b"(cposix\nsystem\nX\x04\0\0\0trueo",
        b"\x8c\x05posix\x8c\x06system\x93",
        b"cposix\nsystem\n)\x81",
        b"cposix\nsystem\n)}\x92",
        b"c__builtin__\neval\n",
        b"cos.path\njoin\n",
        b"ctorch.serialization\nos.system\n",
        b"c_io\nopen\n",
    ],
)
def test_every_way_to_call_is_seen(call):
    assert "refused" in error(with_pickle(b"\x80\x04" + call + b"."))


def test_what_is_not_known_is_not_run():
    report = scanned(saved({"x": STEADY, "e": Evil(plant)}))
    assert [tensor.name for tensor in report.tensors] == ["x"]
    assert PLANTED == "planted"


BROKEN_PICKLES = {
    "no end": b"\x80\x02]",
    "nothing": b"",
    "nothing on the stack": b"\x80\x02.",
    "reduce of nothing": b"\x80\x02R.",
    "no mark": b"\x80\x02K\1t.",
    "append to a number": b"\x80\x02K\1K\2a.",
    "odd dictionary": b"\x80\x02}(K\1u.",
    "memo that is empty": b"\x80\x02h\5.",
    "build of a number": b"\x80\x02K\1K\2b.",
    "unknown opcode": b"\x80\x02\xff.",
    "text that is none": b"\x80\x02X\2\0\0\0\xff\xff.",
    "text of 4 GB": b"\x80\x02X\xff\xff\xff\xff.",
    "text of 16 EB": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "bytes of 16 EB": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "number of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "number in words": b"\x80\x02Ix\n.",
    "global of a number": b"\x80\x04K\1K\2\x93.",
    "place out of range": b"\x80\x02Np99999999999999999999\n.",
    "out of band": b"\x80\x05\x97.",
    "storage of no kind": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NQK\0)))tR.",
    "no storage": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\0)))tR.",
    "sizes of another kind": rebuilt(0, ("a",), (1,)),
    "other number of strides": rebuilt(0, (2, 2), (1,)),
    "negative size": rebuilt(0, (-1,), (1,)),
    "negative stride": rebuilt(4, (5,), (-1,)),
    "negative offset": rebuilt(-1, (2,), (1,)),
    "offset beyond": rebuilt(5, (1,), (1,)),
    "size beyond": rebuilt(0, (6,), (1,)),
    "stride beyond": rebuilt(0, (2,), (5,)),
    "enormous": rebuilt(0, (1 << 62, 1 << 62), (1, 1)),
    "beyond 64 bits": rebuilt(0, (1 << 64,), (0,)),
    "storage beyond the file": rebuilt(0, (9,), (1,), storage(numel=9)),
    "storage of negative size": rebuilt(0, (9,), (1,), storage(numel=-1)),
    "storage that is not there": rebuilt(0, (5,), (1,), storage(key=b"1")),
    "storage elsewhere": rebuilt(0, (5,), (1,), storage(key=b"../data.pkl")),
    "storage of another dtype": rebuilt(0, (5,), (1,), storage(kind=b"DoubleStorage")),
    "storage of no dtype": rebuilt(0, (5,), (1,), storage(kind=b"system")),
    "deep": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
}


@pytest.mark.parametrize("kind", BROKEN_PICKLES)
def test_broken_pickles(kind):
    assert error(with_pickle(BROKEN_PICKLES[kind]))


def test_the_hand_made_pickle_is_right():
    """So that the broken ones are broken where they mean to be."""
    tensor = one(scanned(with_pickle(rebuilt(1, (2,), (2,)))))
    assert (tensor.min, tensor.max) == (0.0, 2.0)


def test_expanded_without_end_is_read_once():
    tensor = one(scanned(with_pickle(rebuilt(4, (1 << 40, 1 << 20), (0, 0)))))
    assert (tensor.numel, tensor.zeros, tensor.max) == (1 << 60, 0, 3.0)


def test_overlapping_windows_are_named():
    assert "overlap" in scanned(with_pickle(rebuilt(0, (3, 3), (1, 1)))).tensors[0].why


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOMBS = {
    "shared lists": b"\x80\x02]q\0" + b"(h\0h\0lq\0" * 60 + b".",
    "a list in itself": b"\x80\x02]q\0h\0a.",
    "memo": b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", i) for i in range(100_000)) + b".",
    "lists": b"\x80\x02" + b"]" * 200_000 + b".",
    "duplicates": b"\x80\x02]" + b"2" * 200_000 + b".",
    "keys that collide": b"\x80\x02}("
    + b"".join(b"\x8a\x0b" + (i * (2**61 - 1)).to_bytes(11, "little") + b"N" for i in range(20_000))
    + b"u.",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_take_little(kind, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(with_pickle(BOMBS[kind]))
    assert peak_of(lambda: scan(path)) < 100 << 20


def test_too_many_steps(monkeypatch):
    monkeypatch.setattr(pickles, "STEPS", 1000)
    assert "at most 1000 steps" in error(with_pickle(b"\x80\x02" + b"]" * 2000 + b"."))


def test_too_large_a_pickle(monkeypatch):
    monkeypatch.setattr(pt, "SIZE", 1000)
    assert "at most 1000 bytes" in error(with_pickle(b"\x80\x02" + b"]" * 2000 + b"."))


def test_too_much_work():
    """A small file whose many views would read it over and over."""
    x = torch.zeros(1 << 16)
    views = [x[i:] for i in range(400)]
    assert "do harm" in error(saved(views))


def test_a_bomb_of_zeros_is_streamed(tmp_path):
    path = tmp_path / "file"
    zeros = npy(None, "<f4", shape=(32 << 20,), data=bytes(128 << 20))
    path.write_bytes(npz({"x": zeros}, zipfile.ZIP_DEFLATED))
    del zeros
    found = []
    assert peak_of(lambda: found.append(scan(path))) < 60 << 20
    assert found[0].tensors[0].zeros == 32 << 20


def test_a_zip_that_claims_too_much():
    content = bytearray(npz({"x": npy(STEADY, "<f4")}, zipfile.ZIP_DEFLATED))
    entry = content.rindex(b"PK\1\2")
    content[entry + 24 : entry + 28] = struct.pack("<I", 1 << 31)
    assert "which no zip can" in error(bytes(content))
