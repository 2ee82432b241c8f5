"""The report of a scan, and its progress bar."""

import json

import pytest
import torch

from safeops.diagnose.scanning import progress
from safeops.diagnose.scanning.scan import scan
from tests.scan_files import STEADY, WEIGHT, saved


@pytest.fixture
def report(tmp_path):
    small = torch.full((100,), 1e-40)
    content = {"steady": STEADY, "sick": WEIGHT, "small": small, "gone": STEADY.to("meta")}
    (tmp_path / "model.pt").write_bytes(saved(content))
    (tmp_path / "none.pt").write_bytes(b"")
    return scan(tmp_path / "model.pt", tmp_path / "none.pt")


def test_names_do_not_command_the_terminal(tmp_path):
    (tmp_path / "model.pt").write_bytes(saved({"\x1b[31mred\n": STEADY, "\ud800": STEADY}))
    report = scan(tmp_path / "model.pt")
    report.show_all = True
    assert [tensor.name for tensor in report.tensors] == [r"\x1b[31mred\n", r"\ud800"]
    str(report).encode()


def test_findings_have_what_to_do(report):
    found = [(f.what, f.amount, f.severity) for f in report.findings]
    assert found == [
        ("nan", 1, "error"),
        ("inf", 1, "error"),
        ("unreadable", 0, "error"),
        ("subnormal", 1, "warning"),
        ("subnormal", 100, "warning"),
        ("not read", 5, "warning"),
    ]
    assert all(finding.remedy and finding.where and finding.detail for finding in report.findings)
    assert report.findings[0].where.endswith("model.pt: sick")


def test_summary_has_the_counts(report):
    assert report.summary() == (
        "1 of 4 tensors in 2 files not finite: 1 nan, 1 inf; 1 not read; 1 file could not be read"
    )
    assert repr(report) == f"<ScanReport: {report.summary()}>"


def test_the_table_has_what_is_wrong_and_all_on_demand(report):
    assert [str(row[0]).rsplit(" ")[-1] for row in report.rows()][1:] == ["sick", "small", "gone"]
    assert str(report.rows()[0][1]).startswith("cannot be read: expected")
    report.show_all = True
    assert len(report.rows()) == 5
    assert report.rows()[2][1:] == ("float32[2, 3]", 1, 1, 0, 1, 1, -2.0, 1.5)
    assert all(len(row) == len(report.columns()) for row in report.rows())


def test_to_dict_is_json(report):
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read["finite"] is False
    model, none = read["files"]
    assert (model["format"], len(model["tensors"]), none["tensors"]) == ("torch", 4, [])
    assert model["tensors"][1]["shape"] == [2, 3]
    assert len(read["findings"]) == 6


def test_the_page_has_a_plot(report, tmp_path):
    pytest.importorskip("matplotlib")
    report.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<svg" in text
    assert "float32[2, 3]" in text


def test_a_page_of_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "bad.pt").write_bytes(saved({"x": torch.tensor([torch.nan])}))
    scan(tmp_path / "bad.pt").to_html(tmp_path / "page.html")
    scan(tmp_path / "none").to_html(tmp_path / "none.html")
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert "<svg" not in (tmp_path / "none.html").read_text()


def test_a_bar_on_demand(tmp_path, capsys):
    (tmp_path / "model [1].pt").write_bytes(saved({"steady": STEADY}))
    assert scan(tmp_path / "model [1].pt", progress=True)
    assert capsys.readouterr().out == ""
    scan(tmp_path / "model [1].pt")  # stderr is no terminal here
    assert capsys.readouterr().err == ""


def test_the_bar_gets_to_its_end(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(progress.Bar, "start", lambda self, path, size: read.append(-size))
    monkeypatch.setattr(progress.Bar, "advance", lambda self, size: read.append(size))
    (tmp_path / "model.pt").write_bytes(saved({"a": STEADY, "b": STEADY[:2], "c": WEIGHT}))
    scan(tmp_path / "model.pt")
    assert sum(read) == 0
    assert len(read) == 4
