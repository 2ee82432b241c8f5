"""Which files a scan takes: of directories and indexes, once, and what it skips."""

import json
import os

import pytest

from safeops.diagnose.scanning.scan import scan
from tests.scan_files import STEADY, npy, safetensors, saved

VOCABULARY = b"\n\x0e\n\x05<unk>\x15" + bytes(4) + b"\x18\x02"
BESIDE = {
    "config.json": b'{\n "x": {"a": 1}}',  # has "{" where a header of safetensors begins
    "merges.txt": "é".encode() * 2000,
    "README.md": b"# Model",
    "LICENSE": b"MIT",
    "empty.py": b"",
    "plot.png": b"\x89PNG" + bytes(100),
    "tokenizer.model": VOCABULARY,
}


@pytest.fixture
def folder(tmp_path):
    """As people download it: two shards, their index, and what lies beside them."""
    folder = tmp_path / "hf"
    (folder / "below").mkdir(parents=True)
    for name in "ab":
        (folder / f"{name}.safetensors").write_bytes(safetensors({name: STEADY}))
    weights = {"a": "a.safetensors", "b": "b.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))
    (folder / "below" / "c.npy").write_bytes(npy(STEADY, "<f4"))
    for name, content in BESIDE.items():
        (folder / name).write_bytes(content)
    return folder


def names(report):
    return sorted(tensor.name for tensor in report.tensors)


def test_a_directory_is_its_tensor_files_once(folder):
    report = scan(folder)
    assert names(report) == ["a", "b"]
    assert report
    assert report.skipped == []


def test_of_a_directory_missing_shards_are_told(folder):
    (folder / "b.safetensors").unlink()
    assert [file.path[-13:] for file in scan(folder).errors] == ["b.safetensors"]


def test_every_suffix_counts_in_a_directory(tmp_path):
    for suffix in ("pt", "pth", "bin", "ckpt", "PT"):
        (tmp_path / f"{suffix}0.{suffix}").write_bytes(saved({suffix: STEADY}))
    (tmp_path / "x.h5.index.json").write_text("no index of tensor files")
    assert names(scan(tmp_path)) == ["PT", "bin", "ckpt", "pt", "pth"]


def test_a_directory_without_tensor_files_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    report = scan(tmp_path)
    assert report.finite is None
    assert "*.safetensors" in report.errors[0].error


def test_all_names_of_a_directory(folder):
    """What a shell makes of hf/*."""
    report = scan(*sorted(folder.iterdir()))
    assert names(report) == ["a", "array", "b"]
    assert report.errors == []
    assert {os.path.basename(path) for path in report.skipped} == set(BESIDE)
    assert report.summary() == "3 tensors in 3 files, all finite; 7 files skipped"
    assert "skipped as no tensor file: " in report.details()
    assert report.details().endswith("and 2 more")
    assert report.to_dict()["skipped"] == report.skipped


@pytest.mark.parametrize("content", [b"no tensors", b"", b"\x89PNG"])
def test_a_tensor_suffix_is_never_skipped(content, tmp_path):
    (tmp_path / "model.bin").write_bytes(content)
    report = scan(tmp_path / "model.bin")
    assert len(report.errors) == 1
    assert report.skipped == []


@pytest.mark.parametrize(
    "content", [b"GGUF" + bytes(99), b"version https://git-lfs x", b"\xba\xad"]
)
def test_what_may_hold_tensors_is_never_skipped(content, tmp_path):
    (tmp_path / "model").write_bytes(content)
    assert len(scan(tmp_path / "model").errors) == 1


def test_what_counts_is_the_content(tmp_path):
    (tmp_path / "odd.json").write_bytes(saved({"x": STEADY}))
    assert names(scan(tmp_path / "odd.json")) == ["x"]


def test_a_file_is_scanned_once(folder, monkeypatch):
    link = folder / "link.safetensors"
    link.symlink_to("a.safetensors")
    monkeypatch.chdir(folder.parent)
    spelled = "hf/a.safetensors", "hf/below/../a.safetensors", folder / "a.safetensors", link
    report = scan(*spelled, folder, "hf/model.safetensors.index.json")
    assert names(report) == ["a", "b"]
    assert report.files[0].path == "hf/a.safetensors"


def test_an_index_stands_for_its_files(tmp_path):
    names = ["a.safetensors", "b.safetensors"]
    for name in names:
        (tmp_path / name).write_bytes(safetensors({name[0]: STEADY}))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}))
    report = scan(index)
    assert [tensor.name for tensor in report.tensors] == ["a", "b"]
    index.write_text(json.dumps({"weight_map": {"a": names[0], "c": "gone.safetensors"}}))
    assert [file.error[:15] for file in scan(index).files] == ["", "expected a file"]


def test_an_index_of_itself_ends(tmp_path):
    index = tmp_path / "model.index.json"
    index.write_text(json.dumps({"weight_map": {"a": index.name, "b": "."}}))
    assert not scan(index)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../x"}}', "[" * 100_000]
)
def test_a_bad_index_is_an_error(text, tmp_path):
    path = tmp_path / "model.index.json"
    path.write_text(text)
    (file,) = scan(path).files
    assert "expected" in file.error or "outside" in file.error
