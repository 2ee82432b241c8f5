"""The command python -m benchmarks and its check: files, verdicts, errors, defaults.

Nothing here asserts a time.
"""

import csv
import json
import math

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks import check, machine, measure, report, requirements, softmax
from benchmarks.rows import BACK, BOTH, NO_GRAD, ONE_WAY, SIZES
from benchmarks.suite import OPS, ROWS

FAMILY = tuple(softmax.FAMILY)
FEW = ["--size", "1000", "--threads", "1", "--no-compile", "--quick"]


def missing(monkeypatch, reason):
    monkeypatch.setattr(machine, "why_no_kernels", lambda device="cpu": reason)


def refused(capsys, *argv):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


# --- the command -------------------------------------------------------------------------------


def test_json_and_csv(tmp_path, capsys):
    output = tmp_path / "results.json"
    argv = ["--op", "log", "finite_clip", "--allow-formulas", "--output", str(output), *FEW]
    assert cli.main(argv) == 0
    whole = json.loads(output.read_text())
    assert {"cpu", "caches", "cores", "torch", "safeops_level", "date"} <= set(whole["machine"])
    assert whole["machine"]["safeops_route"] in " ".join(capsys.readouterr().out.split())
    assert whole["failed"] == []
    assert len(whole["records"]) == 2 * (5 + 4)
    assert_whole(whole["records"])
    rows = list(csv.DictReader(output.with_suffix(".csv").read_text().splitlines()))
    assert [row["contender"] for row in rows] == [r["contender"] for r in whole["records"]]
    assert set(whole["records"][0]) | set(report.CSV_MACHINE) == set(rows[0])


def assert_whole(records):
    for record in records:
        assert 0 < record["p20_us"] <= record["median_us"] <= record["p80_us"]
        assert record["bytes"] > 0
        assert all(math.isfinite(record[name]) for name in ("gb_per_s", "share_of_yardstick"))
        if record["contender"] == "torch":
            assert record["speed_vs_torch"] == 1.0


def test_check_exits_with_1_on_a_miss_and_0_without(monkeypatch, capsys, tmp_path):
    output = tmp_path / "check.json"
    argv = ["--check", "--allow-formulas", "--no-compile", "--threads", "1", "--quick"]
    for least, code in ((0.0, 0), (1e9, 1)):
        need = requirements.Requirement(("log",), (1000,), (ONE_WAY,), "double where", least)
        monkeypatch.setattr(check, "REQUIREMENTS", (need,))
        assert cli.main([*argv, "--output", str(output)]) == code
        cases = len(need.groups((1,)))
        assert f"{0 if code else cases} of {cases} requirements met" in capsys.readouterr().out
        met = [verdict["met"] for verdict in json.loads(output.read_text())["verdicts"]]
        assert met == [code == 0] * cases


def test_every_requirement_finds_its_cases_and_contenders():
    _, needed = check.plan(OPS, (1, 2), compiled=True)
    for need in requirements.REQUIREMENTS:
        groups = need.groups((1, 2))
        assert groups
        assert all({c.layout for c in group} for group in groups)
        assert all(len(group) >= len(need.layouts) for group in groups)
    for where, names in needed.items():
        known = measure.contenders(where.row, compiled=True)
        assert {name.removeprefix(measure.ONE_THREAD) for name in names} <= set(known)


def test_the_check_of_some_ops_and_threads():
    lines, needed = check.plan(["logsumexp"], (1,), compiled=False)
    assert {where.row.op for where in needed} == {"logsumexp"}
    assert not any("thread" in line.requirement.against for line in lines)
    assert not any(measure.COMPILED in name for names in needed.values() for name in names)


def measured(where, own, torch_):
    """A result as if safeops had taken so long beside torch."""
    times = {"safeops": [own] * 3, "torch": [torch_] * 3, measure.COPY: [1.0] * 3}
    record = measure.record(where, times, "safeops", 8, None)
    records = [record | {"agrees_with_torch": True, "yardstick": "copy"}]
    return measure.Result(where, times, {}, records, 0.1)


def test_a_mean_is_judged_and_its_parts_are_shown():
    need = requirements.of_rows(
        ("softmax",), softmax.LAST, ONE_WAY, 1.5, 1.9, floor=1.0, contender="safeops"
    )
    lines = check.lines_of(need, (1,))
    results = [
        measured(where, 1.0, speed)
        for where, speed in zip(lines[0].cases, (0.5, 2.0, 8.0), strict=True)
    ]
    records = [verdict.record() for verdict in check.judge(lines, results)]
    assert [record["layout"] for record in records] == [
        "geometric mean of 3",
        "[4096,64]",
        "[4096,1024]",
        "[8,128000]",
    ]
    assert [record["measured"] for record in records] == pytest.approx([2.0, 0.5, 2.0, 8.0])
    assert [record["verdict"] for record in records] == ["pass", "MISS", "pass", "pass"]
    assert [record["required"] for record in records] == [1.5, 1.0, 1.0, 1.0]
    assert [record["aim"] for record in records] == [1.9, None, None, None]
    assert check.verdict_table(check.judge(lines, results)).row_count == 4


def test_what_is_only_shown_is_neither_met_nor_missed():
    need = requirements.of_rows(FAMILY, softmax.LARGE, BACK, None)
    lines = check.lines_of(need, (1,))
    verdicts = check.judge(lines, [measured(line.cases[0], 2.0, 1.0) for line in lines])
    assert [(verdict.word, verdict.met) for verdict in verdicts] == [("–", None)] * 3


def test_a_mean_with_a_part_that_did_not_run():
    assert check.mean([2.0, 8.0]) == pytest.approx(4.0)
    assert check.mean([2.0, None]) is None
    assert check.mean([]) is None


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
    cases = [c for c in cli.cases(cli.options([])) if c.direction != NO_GRAD]
    elements, rows = ([c for c in cases if (c.row.op in FAMILY) == kind] for kind in (False, True))
    assert {c.size for c in elements} == set(SIZES)
    assert {c.layout for c in rows} >= {"[4096,64]", "[128000,8] dim 0", "[8,8,256,256] causal"}
    assert {c.dtype for c in cases} == {torch.float32, torch.bfloat16}
    assert {c.direction for c in elements} == {ONE_WAY, BOTH}
    assert {c.direction for c in rows} == {ONE_WAY, BACK}


def test_defaults_of_quick():
    chosen = cli.options(["--quick"])
    cases = cli.cases(chosen)
    assert max(c.size for c in cases) == 1 << 20
    assert len({c.threads for c in cases}) == 1
    assert {c.dtype for c in cases} == {torch.float32}
    assert {c.row for c in cases} == set(ROWS)
    assert not chosen.compile
    assert cli.options(["--quick", "--compile"]).compile
