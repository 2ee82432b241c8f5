"""The benchmark tool: its contenders agree, its files are whole, its errors are clear.

Nothing here asserts a time.
"""

from __future__ import annotations

import csv
import json
import math
import warnings

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks import check, machine, measure, report, timing
from benchmarks.rows import OPS, ROWS, SAME
from tests.routes import Recorder

SIZE = 3072
HEALTHY = {
    "div": lambda x, y=3.0: torch.as_tensor(y) != 0,
    "log": lambda x: x > 0,
    "sqrt": lambda x: x > 0,
    "finite_clip": torch.isfinite,
}
BY_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op} {row.layout}")
TINY = timing.Effort(seconds=0.0, least=3)
FEW = ["--size", "1000", "--threads", "1", "--no-compile", "--quick"]


def case(row, direction="forward", dtype=torch.float32, threads=1):
    return measure.Case(row, SIZE, dtype, threads, direction)


def by_op(op):
    return next(row for row in ROWS if row.op == op and row.layout == SAME)


def missing(monkeypatch, reason):
    monkeypatch.setattr(machine, "why_no_kernels", lambda: reason)


def refused(capsys, *argv):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


# --- rows --------------------------------------------------------------------------------------


@BY_ROW
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contenders_agree_at_healthy_points(row, dtype):
    inputs = row.tensors(SIZE, dtype, measure.SINGULAR)
    healthy = HEALTHY[row.op](*inputs)
    expected = row.forms["torch"](*inputs)
    assert set(row.forms) >= {"safeops", "torch"}
    for form in row.forms.values():
        value, like = torch.broadcast_tensors(form(*inputs), expected)
        keep = healthy.expand_as(value)
        torch.testing.assert_close(value[keep], like[keep])


@BY_ROW
def test_gradients_agree_where_all_is_healthy(row):
    inputs = [x.requires_grad_() for x in row.tensors(SIZE, torch.float32, 0.0)]
    expected = torch.autograd.grad(row.forms["torch"](*inputs).sum(), inputs)
    for form in row.forms.values():
        grads = torch.autograd.grad(form(*inputs).sum(), inputs)
        torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", OPS)
def test_share_of_singular_elements(op):
    *_, x = by_op(op).tensors(100_000, torch.float32, 0.01)
    assert 0.008 < (~HEALTHY[op](*[x] * (1 + (op == "div")))).float().mean() < 0.012


def test_inputs_are_the_same_every_time():
    first, second = (by_op("log").tensors(SIZE, torch.float32, 0.01) for _ in range(2))
    assert torch.equal(first[0], second[0])


# --- timing ------------------------------------------------------------------------------------


def test_every_contender_takes_every_place_in_a_round():
    orders = [timing.turns("abc", number) for number in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert all({order[place] for order in orders} == {"a", "b", "c"} for place in range(3))


def test_speed_is_the_median_of_the_ratios_within_rounds():
    times = {"a": [1.0, 2.0, 10.0], "b": [2.0, 4.0, 5.0]}
    assert timing.speed(times, "a", "b") == 2.0
    assert timing.speed(times, "a", "c") is None


def test_bytes_moved():
    x, y, result = torch.ones(8, 4), torch.ones(4), torch.ones(8, 4)
    assert measure.bytes_moved([x, y], result, backward=False) == 4 * (32 + 4 + 32)
    assert measure.bytes_moved([x, y], result, backward=True) == 4 * (68 + 32 + 2 * 36)


def test_cores_busy_elsewhere():
    start = machine.Clock(wall=1.0, own=1.0, everyone=10.0)
    end = machine.Clock(wall=3.0, own=3.0, everyone=15.0)
    assert machine.elsewhere(start, end) == 1.5
    assert machine.elsewhere(None, end) is None


def test_a_disturbed_run_says_so():
    results = [measure.Result(case(by_op("log")), {}, {}, [], busy) for busy in (None, 0.1, 1.9)]
    assert report.disturbances(results[:2]) == []
    assert report.disturbances(results)[0].startswith("1 of 3 cases")


def test_a_measurement_leaves_the_process_as_it_was():
    before = torch.get_num_threads()
    result = measure.measure(case(by_op("log")), {"safeops", "torch"}, TINY)
    assert set(result.times) == {"safeops", "torch", "copy"}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("direction", measure.DIRECTIONS)
def test_the_record_names_the_route_that_ran(direction):
    result = measure.measure(case(by_op("log"), direction), {"safeops", "torch"}, TINY)
    kernel = machine.why_no_kernels() is None
    routes = {record["contender"]: record["route"] for record in result.records}
    assert routes == {"safeops": "kernel" if kernel else "formulas", "torch": "eager"}


@BY_ROW
def test_the_timed_call_runs_the_kernels_if_there_are_any(row):
    where = case(row, "forward+backward")
    call = measure.call_of(row.forms["safeops"], *measure.inputs_of(where))
    with Recorder() as seen:
        call()
    expected = {row.op, f"{row.op}_backward"} if machine.why_no_kernels() is None else set()
    assert seen.names == expected


def test_a_compiled_form_that_fails_is_reported(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda *args, **options: broken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = measure.measure(case(by_op("log")), {"safeops", "compiled safeops"}, TINY)
    assert result.failed == {"compiled safeops": "RuntimeError: no compiler"}
    assert "no compiler" in report.failures([result])[0]
    assert report.tables([result])[0].row_count == 1


# --- the command -------------------------------------------------------------------------------


def test_json_and_csv(tmp_path, capsys):
    output = tmp_path / "results.json"
    argv = ["--op", "log", "finite_clip", "--allow-formulas", "--output", str(output), *FEW]
    assert cli.main(argv) == 0
    whole = json.loads(output.read_text())
    assert {"cpu", "caches", "cores", "torch", "safeops_level", "date"} <= set(whole["machine"])
    assert whole["machine"]["safeops_route"] in " ".join(capsys.readouterr().out.split())
    assert whole["failed"] == []
    assert len(whole["records"]) == 2 * 2 * (5 + 4)
    assert_whole(whole["records"])
    rows = list(csv.DictReader(output.with_suffix(".csv").read_text().splitlines()))
    assert [row["contender"] for row in rows] == [r["contender"] for r in whole["records"]]
    assert set(whole["records"][0]) | set(report.CSV_MACHINE) == set(rows[0])


def assert_whole(records):
    for record in records:
        assert 0 < record["p20_us"] <= record["median_us"] <= record["p80_us"]
        assert record["bytes"] > 0
        assert all(math.isfinite(record[name]) for name in ("gb_per_s", "share_of_copy"))
        if record["contender"] == "torch":
            assert record["speed_vs_torch"] == 1.0


def test_check_exits_with_1_on_a_miss_and_0_without(monkeypatch, capsys, tmp_path):
    output = tmp_path / "check.json"
    argv = ["--check", "--allow-formulas", "--no-compile", "--threads", "1", "--quick"]
    for least, code in ((0.0, 0), (1e9, 1)):
        need = check.Requirement(("log",), (1000,), ("forward",), "double where", least)
        monkeypatch.setattr(check, "REQUIREMENTS", (need,))
        assert cli.main([*argv, "--output", str(output)]) == code
        cases = len(need.cases((1,)))
        assert f"{0 if code else cases} of {cases} requirements met" in capsys.readouterr().out
        met = [verdict["met"] for verdict in json.loads(output.read_text())["verdicts"]]
        assert met == [code == 0] * cases


def test_every_requirement_finds_its_cases_and_contenders():
    _, needed = check.plan(OPS, (1, 2), compiled=True)
    for need in check.REQUIREMENTS:
        assert need.cases((1,))
    for where, names in needed.items():
        assert names <= set(measure.contenders(where.row, compiled=True))


def test_numbers_of_the_formulas_do_not_pass_for_those_of_the_kernels(
    monkeypatch, capsys, tmp_path
):
    missing(monkeypatch, "no compiler was found")
    output = tmp_path / "results.json"
    assert "no compiler was found" in refused(capsys, "--output", str(output), *FEW)
    assert "no compiler was found" in refused(capsys, "--check")
    assert not output.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--op", "exp"], "invalid choice: 'exp'"),
        (["--size", "1G"], "expected a number such as 1000, 64K or 1M, got '1G'"),
        (["--size", "0"], "got '0'"),
        (["--dtype", "int32"], "invalid choice: 'int32'"),
        (["--threads", "0"], "the cores this process may use, got '0'"),
        (["--threads", "99999"], "the cores this process may use, got '99999'"),
        (["--singular", "2"], "expected a number from 0 to 1, got '2'"),
        (["--output", "results.txt"], "ends in .json, got 'results.txt'"),
        (["--output", "no/such/folder/x.json"], "there is no folder no/such/folder"),
        (["--check", "--size", "1K"], "--check has its own"),
    ],
)
def test_bad_options(capsys, argv, message):
    assert message in refused(capsys, *argv)


@pytest.mark.parametrize(("text", "value"), [("1000", 1000), ("64K", 65536), ("2m", 2 << 20)])
def test_sizes(text, value):
    assert cli.size(text) == value
    assert report.size_name(value) == text.upper()


def test_defaults():
    cases = cli.cases(cli.options([]))
    assert {c.size for c in cases} == set(cli.SIZES)
    assert {c.dtype for c in cases} == {torch.float32, torch.bfloat16}
    assert {c.direction for c in cases} == set(measure.DIRECTIONS)
    assert max(c.size for c in cli.cases(cli.options(["--quick"]))) == 1 << 20
