"""What scan makes of files that hold more than tensors, or tensors of other kinds."""

import argparse
import collections

import pytest
import torch
from torch import nn

from safeops.diagnose.scanning import elements
from tests.scan_files import STEADY, npy, npz, saved
from tests.scanned import scanned


def test_names_of_a_whole_model_and_optimizer():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    names = {
        tensor.name
        for tensor in scanned(saved({"model": model, "optimizer": optimizer.state_dict()})).tensors
    }
    assert {"model.0.weight", "model.1.running_var", "optimizer.state[1].exp_avg"} <= names
    assert len(names) == 7 + 12


def test_other_objects_are_left_out():
    content = {
        "args": argparse.Namespace(lr=0.1, start=STEADY),
        "counts": collections.Counter("abc"),
        "error": ValueError("no"),
        "list": [1, (2, {3: STEADY})],
        "set": {1, 2},
        "bytes": b"abc",
        "dtype": torch.float16,
        "size": torch.Size([2]),
    }
    report = scanned(saved(content))
    assert [tensor.name for tensor in report.tensors] == ["args.start", "list[1][1][3]"]
    assert report


class Marked(torch.Tensor):
    """A subclass, which a file names with its module."""


def test_subclasses_and_attributes():
    marked = STEADY.as_subclass(Marked)
    parameter = nn.Parameter(STEADY.clone())
    parameter.note = "kept"
    tensors = scanned(saved({"marked": marked, "parameter": parameter})).tensors
    assert [(t.name, t.max) for t in tensors] == [("marked", 3.0), ("parameter", 3.0)]


def test_tied_tensors_are_reported_each_and_read_once(monkeypatch):
    read = []
    plain = elements.Elements.add
    monkeypatch.setattr(
        elements.Elements, "add", lambda self, x: (read.append(len(x)), plain(self, x))
    )
    tied = nn.Parameter(STEADY)
    report = scanned(saved({"a": tied, "b": tied, "c": tied.detach()}))
    assert [tensor.name for tensor in report.tensors] == ["a", "b", "c"]
    assert read == [5]


@pytest.mark.filterwarnings("ignore")  # of torch, about its own quantized and sparse tensors
def test_what_is_not_read_is_named():
    content = {
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(STEADY, 0.1, 0, torch.qint8),
        "meta": torch.empty(3, device="meta"),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "steady": STEADY,
    }
    report = scanned(saved(content))
    why = {tensor.name: tensor.why for tensor in report.tensors if tensor.why}
    assert set(why) == {"sparse", "quantized", "meta", "conj"}
    assert [finding.what for finding in report.findings] == ["not read"] * 4
    assert report
    assert "4 not read" in report.summary()
    assert "all finite" not in report.summary()


def test_a_file_of_which_nothing_is_read_is_an_error():
    report = scanned(npy(None, "|O", shape=(1,), data=b"cposix\nsystem\n"))
    assert report.finite is None
    assert not report
    assert report.to_dict()["finite"] is None
    assert report.summary() == "nothing read; 1 file could not be read"
    assert "array (an array of objects is a pickle" in report.errors[0].error
    assert report.rows() == []


def test_a_file_without_tensors_alone_is_nothing_read():
    report = scanned(saved({"lr": 0.1}))
    assert report.finite is None
    assert report.summary() == "nothing read: no tensors"
    assert report.errors == []


def test_arrays_that_are_no_numbers():
    content = npz(
        {
            "objects": npy(None, "|O", shape=(1,), data=b"cposix\nsystem\n"),
            "text": npy(None, "<U3", shape=(1,), data=b"a" * 12),
            "records": npy(None, [("a", "<f4")], shape=(1,), data=b"a" * 4),
            "x": npy(STEADY, "<f4"),
        }
    )
    report = scanned(content)
    assert [bool(tensor.why) for tensor in report.tensors] == [True, True, True, False]
    assert "pickle" in report.tensors[0].why
