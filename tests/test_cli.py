"""The safeops command, and a doctor that notices what is broken."""

import json
import subprocess
import sys

import pytest
import torch

import safeops
from safeops import _extension, cli, doctor
from tests.cases import OPS
from tests.row_cases import ROW_OPS


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"safeops {safeops.__version__}\n"


def test_no_command_prints_help(capsys):
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "demo" in out
    assert "doctor" in out
    assert "scan" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["cure"], "cure"),
        (["demo", "--epochs", "0"], "above 0"),
        (["demo", "--epochs", "many"], "above 0"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed", str(2**63)], "2^63"),
        (["demo", "--output", "/no/such/directory"], "existing directory"),
        (["doctor", "--fast"], "--fast"),
        (["scan"], "FILE"),
        (["scan", "--deep", "x.pt"], "--deep"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv, says, capsys):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_python_m_safeops():
    command = [sys.executable, "-W", "error", "-m", "safeops", "doctor"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert torch.__version__ in ran.stdout
    for op in doctor.OPS:
        assert op in ran.stdout


def test_doctor_needs_only_torch_and_rich():
    code = (
        "import sys, safeops.cli; safeops.cli.main(['doctor'])\n"
        "assert not {'matplotlib', 'sklearn', 'typer', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_all_is_well():
    assert doctor.self_test() == {name: [] for name in doctor.OPS}


def test_every_op_is_tested():
    ops = {op.name for op in (*OPS, *ROW_OPS)}
    assert set(doctor.OPS) == {*ops, doctor.CLIP}
    assert set(doctor.FORMULAS) | set(doctor.ROWS) == ops
    assert {case.op for case in doctor.SINGULAR} == ops


def drop_options(op):
    return lambda *inputs, **options: op(*inputs)


def detached(op):
    """The right value with a gradient of a thousandth too much."""

    def broken(x, *rest, **options):
        value = op(x, *rest, **options)
        return value + 1e-3 * (value - value.detach())

    return broken


def off_in_half(op):
    def broken(*inputs, **options):
        value = op(*inputs, **options)
        return value * 1.0625 if value.dtype is torch.bfloat16 else value

    return broken


def raises(op):
    def broken(*inputs, **options):
        raise RuntimeError("no such kernel")

    return broken


TORCH = {
    "safe_div": torch.div,
    "safe_log": torch.log,
    "safe_sqrt": torch.sqrt,
    "finite_clip": torch.clone,
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "logsumexp": torch.logsumexp,
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("breakage", [drop_options, detached, off_in_half, raises])
def test_a_broken_op_is_found_and_no_other(name, breakage, monkeypatch):
    if breakage is drop_options and name in doctor.ROWS:
        breakage = lambda op: TORCH[name]  # noqa: E731 - the self-test passes them no options
    monkeypatch.setattr(safeops, name, breakage(getattr(safeops, name)))
    found = doctor.self_test()
    assert found.pop(name)
    assert not any(found.values())


@pytest.mark.parametrize("clip", [torch.nn.utils.clip_grad_norm_, raises(None)])
def test_a_broken_clip_is_found_and_no_other(clip, monkeypatch):
    monkeypatch.setattr(safeops, doctor.CLIP, drop_options(clip))
    found = doctor.self_test()
    assert len(found.pop(doctor.CLIP)) >= 4
    assert not any(found.values())


@pytest.mark.parametrize("name", TORCH)
def test_plain_torch_does_not_pass(name, monkeypatch, capsys):
    monkeypatch.setattr(safeops, name, drop_options(TORCH[name]))
    assert cli.main(["doctor"]) == 1
    assert "failed" in capsys.readouterr().out


def test_a_finite_number_is_no_infinity():
    one = torch.ones(1)
    assert doctor._wrong(one, one * torch.inf).all()
    assert doctor._wrong(one * torch.inf, one).all()
    assert doctor._wrong(one * torch.nan, one).all()
    assert not doctor._wrong(one * torch.nan, one * torch.nan).any()


@pytest.mark.skipif(_extension.module is None, reason="no kernels here")
def test_a_kernel_unlike_the_formulas_is_found(monkeypatch):
    log = safeops.safe_log

    def broken(x, **options):
        off = type(x) is torch.Tensor and len(x) > 100
        return log(x, **options) * (1.01 if off else 1.0)

    monkeypatch.setattr(safeops, "safe_log", broken)
    assert all("kernel" in finding for finding in doctor.self_test()["safe_log"])
    assert len(doctor.self_test()["safe_log"]) >= 4


@pytest.mark.skipif(_extension.module is None, reason="no kernels here")
def test_a_kernel_that_does_not_run_is_found(monkeypatch):
    monkeypatch.setattr(safeops, "why_not_kernel", lambda *tensors: "a reason")
    found = doctor.self_test()
    assert found.pop(doctor.CLIP) == []
    for findings in found.values():
        assert len(findings) == 4
        assert "a reason" in findings[0]


@pytest.fixture
def files(tmp_path):
    """A healthy file, a sick one and one that is no checkpoint."""
    steady = torch.linspace(-1.0, 3.0, 5)
    torch.save({"steady": steady, "step": torch.tensor(3)}, tmp_path / "good.pt")
    torch.save({"steady": steady, "sick": torch.tensor([torch.nan, 2.0])}, tmp_path / "sick.pt")
    (tmp_path / "photo.pt").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    return tmp_path


@pytest.mark.parametrize(
    ("names", "status", "says"),
    [
        (["good.pt"], 0, "2 tensors in 1 file, all finite"),
        (["sick.pt"], 1, "1 of 2 tensors in 1 file not finite: 1 nan"),
        (["photo.pt"], 2, "JPEG"),
        (["missing.pt"], 2, "spelled"),
        (["good.pt", "sick.pt"], 1, "sick.pt: sick"),
        (["photo.pt", "sick.pt", "good.pt"], 2, "1 of 4 tensors in 3 files not finite: 1 nan; 1"),
    ],
)
def test_scan_status_and_summary(names, status, says, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert cli.main(["scan", *names]) == status
    captured = capsys.readouterr()
    assert says in captured.out
    assert "steady" not in captured.out
    assert captured.err == ""


def test_scan_lists_all(files, capsys):
    assert cli.main(["scan", "--all", str(files / "sick.pt")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["steady", "sick"]


def test_scan_lists_all_of_many(tmp_path, capsys):
    torch.save([torch.ones(1)] * 60, tmp_path / "many.pt")
    assert cli.main(["scan", "--all", str(tmp_path / "many.pt")]) == 0
    out = capsys.readouterr().out
    assert "[59]" in out
    assert "more" not in out


def test_scan_prints_json(files, capsys):
    assert cli.main(["scan", "--json", str(files / "sick.pt"), str(files / "photo.pt")]) == 2
    sick, photo = json.loads(capsys.readouterr().out)["files"]
    assert [(t["name"], t["nan"], t["max"]) for t in sick["tensors"]] == [
        ("steady", 0, 3.0),
        ("sick", 1, 2.0),
    ]
    assert "JPEG" in photo["error"]


def test_scan_writes_a_page(files, capsys):
    pytest.importorskip("matplotlib")
    page = files / "page.html"
    assert cli.main(["scan", str(files / "sick.pt"), "--html", str(page)]) == 1
    assert "<svg" in page.read_text()


@pytest.mark.parametrize("page", ["no/page.html", "."])
def test_scan_refuses_a_page_without_a_place_first(page, files, capsys):
    assert cli.main(["scan", str(files / "good.pt"), "--html", str(files / page)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--html: expected the path of a file in a directory that exists" in captured.err
    assert captured.err.count("\n") == 1


def test_scan_of_what_is_not_checked_is_status_2(files, capsys):
    (files / "config.json").write_text("{}")
    torch.save({"lr": 0.1}, files / "arguments.pt")
    for name in ("config.json", "arguments.pt"):
        assert cli.main(["scan", "--json", str(files / name)]) == 2
        assert json.loads(capsys.readouterr().out)["finite"] is None
    assert cli.main(["scan", *(str(files / n) for n in ("config.json", "good.pt"))]) == 0
    assert "skipped as no tensor file" in capsys.readouterr().out.replace("\n", " ")


def test_scan_imports_no_more_than_it_needs(files):
    code = (
        "import sys, safeops.cli\n"
        f"status = safeops.cli.main(['scan', {str(files / 'good.pt')!r}])\n"
        "assert not {'matplotlib', 'safetensors', 'torch._dynamo'} & set(sys.modules)\n"
        "assert status == 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_kernels_or_the_reason():
    facts = doctor.versions()
    if _extension.module is None:
        assert _extension.reason in facts["kernels"]
    else:
        assert _extension.module.level() in facts["kernels"]
        assert any(key.startswith("built with") for key in facts)
