"""The benchmarks of lists of gradients: their contenders agree, and every clip that is timed clips.

Nothing here asserts a time.
"""

import json
import weakref

import pytest
import torch
from torch import nn

from benchmarks import __main__ as cli
from benchmarks import check, gradients, machine, measure, report, requirements, timing, yardsticks
from benchmarks.gradients import CLIPPED, GPT2, MANY, ROWS, Step, Training
from benchmarks.rows import NO_GRAD, ONE_WAY
from safeops import clip_report

SIZE = 3000
TINY = timing.Effort(seconds=0.0, least=3)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
BY_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op} {row.layout}")
FEW = ["--size", "1000", "--threads", "1", "--quick", "--allow-formulas"]


def case(row, dtype=torch.float32):
    return measure.Case(row, SIZE, dtype, 1, NO_GRAD, 0.0)


def by_layout(op, layout):
    return next(row for row in ROWS if (row.op, row.layout) == (op, layout))


def a_row(**forms):
    """One that is not of the suite: its forms are given a Step of 1000 tensors."""
    clip = by_layout("clip_grad_norm_", MANY + CLIPPED)
    forms = {**clip.forms, **forms}
    return gradients.Listed(
        clip.op, clip.layout, clip.shapes, clip.inputs, forms, given=clip.given, mend=clip.mend
    )


# --- rows --------------------------------------------------------------------------------------


def test_shapes():
    small, many = (by_layout("clip_grad_norm_", name) for name in (GPT2, MANY))
    assert (len(small.shapes), small.sizes) == (148, (124_439_808,))
    assert (len(many.shapes), many.sizes) == (1000, (256_000,))
    assert small.shapes_at(*small.sizes) == list(small.shapes)
    assert many.shapes_at(3000) == [(3,)] * 1000
    assert len(small.shapes_at(1)) == 148
    assert small.elements(10_000_000) == pytest.approx(10_000_000, rel=0.01)
    assert by_layout("check_finite", gradients.ONE).shapes_at(1234) == [(1234,)]


@BY_ROW
@DTYPES
def test_contenders_agree(row, dtype):
    inputs, upstream = measure.inputs_of(case(row, dtype))
    calls, failed = measure.prepared(case(row, dtype), row.forms, inputs, upstream)
    assert not failed
    assert measure.agrees(case(row, dtype), calls, "safeops", lambda: row.mend(*inputs))
    assert measure.agrees(case(row, dtype), calls, "torch", lambda: None) is None


@BY_ROW
def test_a_measurement(row):
    result = measure.measure(case(row), list(row.forms), TINY)
    assert set(result.times) == {*row.forms, measure.READ}
    bare = machine.why_no_list_kernels() is not None
    for record in result.records:
        own = record["contender"] == "safeops"
        assert record["route"] == (("formulas" if bare else "kernel") if own else "eager")
        assert record["yardstick"] in yardsticks.reads_of(8)
        assert record["share_of_yardstick"] > 0
        assert record["bytes"] == 4 * row.elements(SIZE)


def test_a_bad_element_is_seen_by_every_check():
    for row in ROWS:
        if row.op in ("check_finite", "clip_report"):
            good = row.tensors(SIZE, torch.float32, 0.0)
            assert all(form(*row.given(*good)) is True for form in row.forms.values())
            good[-1].view(-1)[-1] = float("nan")
            for name, form in row.forms.items():
                if (row.op, name) != ("clip_report", "safeops"):
                    assert form(*row.given(*good)) is False


# --- clips -------------------------------------------------------------------------------------


def step_of(dtype, kind=Step):
    row = by_layout("clip_grad_norm_", MANY)
    return kind(*row.tensors(SIZE, dtype, 0.0))


@DTYPES
def test_every_call_clips_whoever_clipped_before(dtype):
    step = step_of(dtype)
    for number in range(60):
        if number % 2:
            assert clip_report(step.parameters, step.lower()).verdict == "clipped"
        else:
            before = step.measured()
            nn.utils.clip_grad_norm_(step.parameters, step.lower())
            assert step.measured() < before
        if number % 20 == 19:
            step.mend()
            assert step.measured() == pytest.approx(step.norm, rel=0.01)


def test_clipping_inside_a_step_does_the_same_as_before_it():
    inside, before = (step_of(torch.float32, Training) for _ in range(2))
    norms = inside.clip_inside(inside.lower()), before.clip_before(before.lower())
    torch.testing.assert_close(*norms)
    assert inside.clipper.verdict == "clipped"
    for own, other in zip(inside.parameters, before.parameters, strict=True):
        torch.testing.assert_close(own.grad, other.grad)
        torch.testing.assert_close(own, other)
    inside.clip_inside(gradients.NEVER)
    assert inside.clipper.verdict == "ok"


@pytest.mark.parametrize("op", ["clip_grad_norm_", "clip_report"])
def test_a_gradient_is_held_by_its_parameter_alone(op):
    row = by_layout(op, MANY)
    (step,), _ = measure.inputs_of(case(row))
    calls, _ = measure.prepared(case(row), row.forms, (step,), None)
    seen = weakref.ref(step.parameters[0].grad)
    assert calls
    assert seen() is not None
    step.parameters[0].grad = None
    assert seen() is None


def test_a_clip_that_does_not_write_is_wrong():
    row = a_row(safeops=lambda step: (step.lower(), torch.tensor(step.norm))[1])
    result = measure.measure(case(row), ["safeops", "torch"], TINY)
    assert [record["agrees_with_torch"] for record in result.records] == [False, None]
    assert "safeops differs from torch" in report.failures([result])[0]


def test_the_gradients_are_mended_before_every_round():
    calls = []
    blocks = {"a": lambda: calls.append("a") or 1.0}
    times = timing.interleaved(blocks, TINY, lambda: calls.append("mend"))
    assert times == {"a": [1.0] * 3}
    assert calls == ["mend", "a"] * 3


# --- yardsticks --------------------------------------------------------------------------------


def test_the_reads_read_all():
    values = {name: read().item() for name, read in yardsticks.reads_of(4096).items()}
    half = 1.875  # the upper half of a float64 1.0 as a float32; the lower one is 0
    assert values["sum"] == 512 * half
    assert values["dot"] == 512 * half**2
    assert values["dot of float64"] == 512
    assert values["sum of int64"] != 0


def test_the_fastest_yardstick_counts():
    lengths = {"slow": 20_000, "quick": 10}
    reads = {name: lambda n=n: sum(range(n)) for name, n in lengths.items()}
    times, best = measure.timed(case(ROWS[0]), {}, reads, TINY, lambda: None)
    assert best == "quick"
    assert set(times) == {measure.READ}


# --- the command and its check -----------------------------------------------------------------


def test_json_and_csv_with_ops_of_both_kinds(tmp_path, capsys):
    output = tmp_path / "results.json"
    argv = ["--op", "log", "check_finite", "--no-compile", *FEW, "--output", str(output)]
    assert cli.main(argv) == 0
    whole = json.loads(output.read_text())
    assert whole["failed"] == []
    assert {record["direction"] for record in whole["records"]} >= {ONE_WAY, NO_GRAD}
    assert {len(record) for record in whole["records"]} == {len(whole["records"][0])}
    shown = capsys.readouterr().out
    assert "of read" in shown
    assert "of copy" in shown


def test_what_was_asked_for_of_ops_does_not_reach_gradients(capsys):
    argv = ["--op", "log", "clip_report", "--singular", "0.5", "--direction", NO_GRAD, ONE_WAY]
    found = {(c.row.op, c.direction, c.singular) for c in cli.cases(cli.options(argv))}
    assert found == {("log", ONE_WAY, 0.5), ("clip_report", NO_GRAD, 0.0)}
    with pytest.raises(SystemExit):
        cli.options(["--op", "clip_report", "--direction", ONE_WAY])
    assert "no row of clip_report has that --direction" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("against", "more"), [("torch", {}), ("read", {}), ("a second", {"seconds": 1.0})]
)
def test_the_check(monkeypatch, capsys, against, more):
    for least, code in ((0.0, 0), (1e9, 1)):
        need = requirements.Requirement(
            ("clip_grad_norm_",), (1000,), (NO_GRAD,), against, least, layouts=(MANY,), **more
        )
        monkeypatch.setattr(check, "REQUIREMENTS", (need,))
        argv = ["--check", "--quick", "--threads", "1", "--allow-formulas"]
        assert cli.main(argv) == code
        assert against in capsys.readouterr().out


def test_a_longest_time_is_judged_by_the_median():
    need = requirements.of_gradients("clip_grad_norm_", (MANY,), 1.0, against="3 s", seconds=3.0)
    (line,) = check.lines_of(need, (1,))
    times = {"safeops": [1.0, 2.0, 9.0]}
    result = measure.Result(line.cases[0], times, {}, [], None)
    assert check.judged(line, [result]).measured == 1.5


def test_a_requirement_of_one_number_of_threads():
    need = requirements.of_gradients("clip_grad_norm_", (GPT2,), 1.0, threads=(2,))
    assert need.groups((1,)) == []
    assert [[c.threads for c in group] for group in need.groups((1, 2))] == [[2]]
