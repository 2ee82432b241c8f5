"""Truncated, damaged, hostile and foreign files: a clear error, nothing run, little memory."""

import os
import pickle
import random
import struct
import zipfile

import pytest

from safeops.diagnose.scanning.scan import scan
from tests.scan_files import (
    HEALTHY,
    PICKLE_NAME,
    STEADY,
    npy,
    npz,
    repacked,
    safetensors,
    saved,
    with_pickle,
)
from tests.scanned import error

FOREIGN = {
    "empty": (b"", "empty"),
    "JPEG": (b"\xff\xd8\xff\xe0" + bytes(2000), "JPEG"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(2000), "h5py"),
    "gzip": (b"\x1f\x8b\x08" + bytes(2000), "unpack"),
    "text": (b"epoch,loss\n1,nan\n", "text that begins with 'epoch,loss"),
    "web page": (b"<!doctype html><html>", "download"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "zeros": (bytes(100), "expected a .pt"),
    "noise": (b"\xba\xad\xf0\x0d" * 100, "unknown format"),
    "pickle": (pickle.dumps([1, 2]), "torch.save did not write"),
    "tar": (bytes(257) + b"ustar\x0000" + bytes(300), "tar"),
    "zip": (repacked(saved(1), replace={PICKLE_NAME: None}), "zip without tensors"),
    "encrypted": (b"PK\3\4" + bytes(100), "zip that cannot be read"),
    "one byte": (b"\x80", "pickle"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files(kind):
    content, says = FOREIGN[kind]
    assert says in error(content)


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # would wait for ever if it was opened
    good = tmp_path / "good.npy"
    good.write_bytes(npy(STEADY, "<f4"))
    (tmp_path / "empty").mkdir()
    report = scan(tmp_path / "empty", tmp_path / "none", tmp_path / "pipe", good, "bad\0name")
    words = ["*.safetensors", "spelled", "pipe", "", "null byte"]
    for word, file in zip(words, report.files, strict=True):
        assert word in file.error
        assert bool(word) == bool(file.error)
    assert len(report.errors) == 4
    assert len(report.tensors) == 1


def test_no_permission_is_explained(tmp_path, monkeypatch):
    from safeops.diagnose.scanning import bytes as stored_bytes

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(stored_bytes.Careful, "__init__", refuse)
    assert "chmod" in scan(tmp_path / "file").files[0].error


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rare_compressions_are_named(method):
    message = error(npz({"x": npy(STEADY, "<f4")}, method))
    assert "only stored and deflated" in message


BAD_SAFETENSORS = {
    "huge header": struct.pack("<Q", 1 << 60) + b"{}",
    "header beyond": struct.pack("<Q", 1000) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"{abc",
    "deep JSON": struct.pack("<Q", 200_004) + b'{"a":' + b"[" * 199_999,
    "twice": struct.pack("<Q", 13) + b'{"a":1,"a":2}',
    "no entry": struct.pack("<Q", 7) + b'{"a":1}',
    "trailing": safetensors({"x": STEADY}, tail=b"more"),
    "cut": safetensors({"x": STEADY})[:-1],
    "overlap": safetensors({"x": STEADY, "y": STEADY}, {"y": {"data_offsets": [0, 20]}}),
    "gap": safetensors({"x": STEADY, "y": STEADY}, {"y": {"data_offsets": [24, 44]}}),
    "reversed": safetensors({"x": STEADY}, {"x": {"data_offsets": [20, 0]}}),
    "negative": safetensors({"x": STEADY}, {"x": {"data_offsets": [-4, 16]}}),
    "fractions": safetensors({"x": STEADY}, {"x": {"data_offsets": [0.0, 20.0]}}),
    "other shape": safetensors({"x": STEADY}, {"x": {"shape": [6]}}),
    "negative shape": safetensors({"x": STEADY}, {"x": {"shape": [-5]}}),
    "enormous shape": safetensors({"x": STEADY}, {"x": {"shape": [1 << 62, 1 << 62]}}),
    "no shape": safetensors({"x": STEADY}, {"x": {"shape": None}}),
}


@pytest.mark.parametrize("kind", BAD_SAFETENSORS)
def test_bad_safetensors(kind):
    assert error(BAD_SAFETENSORS[kind])


BAD_NPY = {
    "no header": b"\x93NUMPY\1\0",
    "version": b"\x93NUMPY\7\0" + npy(STEADY, "<f4")[8:],
    "long header": b"\x93NUMPY\2\0" + struct.pack("<I", 20_000) + b"{" * 30_000,
    "deep header": b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + b"(" * 9000,
    "code": b"\x93NUMPY\1\0" + struct.pack("<H", 14) + b"print('hello')",
    "other keys": b"\x93NUMPY\1\0" + struct.pack("<H", 8) + b"{'a': 1}",
    "cut": npy(STEADY, "<f4")[:-1],
    "trailing": npy(STEADY, "<f4") + b"more",
    "shape": npy(STEADY, "<f4", shape=(1 << 62, 8)),
    "negative": npy(STEADY, "<f4", shape=(-5,)),
    "words": npy(STEADY, "<f4", shape=("five",)),
}


@pytest.mark.parametrize("kind", BAD_NPY)
def test_bad_npy(kind):
    assert error(BAD_NPY[kind])
    assert error(npz({"x": BAD_NPY[kind]})) or kind == "no header"


def test_a_file_that_shrinks_meanwhile(tmp_path):
    from safeops.diagnose.scanning.bytes import ScanError, reading

    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with reading(path) as file:
        chunks = file.chunks(0, 100_000)
        os.truncate(path, 10)
        with pytest.raises(ScanError, match="became shorter"):
            next(chunks)


def damaged(content, chance):
    """Cut, with flipped bits, or with some bytes replaced."""
    content = bytearray(content)
    kind = chance.randrange(3)
    if kind == 0:
        return bytes(content[: chance.randrange(len(content))])
    for _ in range(chance.choice([1, 2, 8, 40])):
        place = chance.randrange(len(content))
        content[place] = (
            chance.randrange(256) if kind == 1 else content[place] ^ (1 << chance.randrange(8))
        )
    return bytes(content)


def check_damaged(form, seeds, path):
    """A report or an error, and no other exception; one that says something."""
    content = HEALTHY[form]()
    for seed in seeds:
        path.write_bytes(damaged(content, random.Random(seed)))
        report = scan(path)
        str(report), report.to_dict()
        assert all(len(file.error) > 15 for file in report.errors)


@pytest.mark.parametrize("form", HEALTHY)
def test_damaged_files(form, tmp_path):
    check_damaged(form, range(60), tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize("form", HEALTHY)
def test_many_damaged_files(form, tmp_path):
    check_damaged(form, range(1000, 6000), tmp_path / "file")


@pytest.mark.slow
def test_many_damaged_pickles(tmp_path):
    """In the pickle itself, past the checks of the zip."""
    import io

    with zipfile.ZipFile(io.BytesIO(HEALTHY["pt"]())) as archive:
        text = archive.read(PICKLE_NAME)
    path = tmp_path / "file"
    for seed in range(5000):
        path.write_bytes(with_pickle(damaged(text, random.Random(seed))))
        scan(path)
