"""The report of a scan, and its progress bar."""

import io
import json

import pytest
import torch
from rich.console import Console

from safeops.diagnose._report import are_numbers
from safeops.diagnose.scanning import progress
from safeops.diagnose.scanning.report import ScanFile, ScanReport, ScanTensor
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
    assert [str(row[0]).rsplit(" ")[-1] for row in report.rows()] == ["sick", "small", "gone"]
    report.show_all = True
    assert len(report.rows()) == 4
    assert report.rows()[1][1:] == ("float32[2, 3]", 1, 1, 0, 1, 1, -2.0, 1.5)
    assert all(len(row) == len(report.columns()) for row in report.rows())


def test_errors_are_lines_above_a_table_of_numbers(report):
    for report.show_all in (False, True):
        lines = str(report).replace("\n", " ")
        assert lines.index("none.pt: cannot be read: expected a file") < lines.index("subnormal ")
        columns = list(zip(*report.rows(), strict=True))
        assert all(map(are_numbers, columns[2:]))


@pytest.mark.parametrize("width", [60, 70, 100])
def test_no_number_is_broken(width, report):
    name = "model.language_model.layers.11.self_attention.output_projection.weight"
    sizes = {"numel": 100_000_000, "nan": 12, "subnormal": 123_456, "zeros": 654_321}
    sick = ScanTensor(name, "bfloat16", (4096, 14336), min=-0.2612, max=-1.234e-05, **sizes)
    report = ScanReport([ScanFile("model.safetensors", tensors=[sick])])
    for report.show_all in (False, True):
        console = Console(file=io.StringIO(), width=width, force_jupyter=False)
        console.print(report)
        words = console.file.getvalue().split()
        for whole in ("-inf", "subnormal", "123456", "654321", "-0.2612", "-1.234e-05"):
            assert whole in words


def test_the_rest_of_a_long_table_is_counted(tmp_path):
    bad = torch.tensor([torch.nan])
    (tmp_path / "bad.pt").write_bytes(saved([bad.clone() for _ in range(45)]))
    assert str(scan(tmp_path / "bad.pt")).endswith("... and 5 more")


def test_the_figure_says_which_tensors_are_where(report):
    pytest.importorskip("matplotlib")
    ((caption, figure),) = report.figures()
    assert "numbered from 1 as --all lists them" in caption
    assert "model.pt: sick (number 2, -2)" in caption
    assert "model.pt: steady (number 1, 3)" in caption
    lines = figure.axes[0].collections[0].get_segments()
    assert [line[0][0] for line in lines] == [1, 2, 3]  # the fourth was not read
    assert list(figure.axes[0].lines[0].get_xdata()) == [2]


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
