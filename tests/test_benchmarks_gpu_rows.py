"""What is measured and wanted of a GPU, without one.

Nothing here asserts a time.
"""

import types

import pytest
import torch

from benchmarks import check, diagnose, gpu_requirements, gpu_rows, guard, measure, swap, timing
from benchmarks.gpu import CPU, CUDA
from benchmarks.gpu_rows import APEX, KEEP, LIGER
from benchmarks.gradients import CLIPPED, GPT2, MANY
from benchmarks.rows import BACK, NO_GRAD, ONE_WAY
from benchmarks.suite import OPS, ROWS, rows_on

TINY = timing.Effort(seconds=0.0, least=3)
SIZE = 3000


def by_name(op, layout):
    return next(row for row in rows_on(CUDA) if (row.op, row.layout) == (op, layout))


# --- rows ----------------------------------------------------------------------------------------


def test_rows():
    names = [(row.op, row.layout) for row in rows_on(CUDA)]
    assert len(set(names)) == len(names)
    on_both = [row for row in ROWS if row not in (*swap.ROWS, *diagnose.ROWS, *guard.ROWS)]
    assert set(names) >= {(row.op, row.layout) for row in on_both}
    assert all(set(row.forms) >= {"safeops", "torch"} for row in rows_on(CUDA))
    assert max(by_name("log", "contiguous").sizes) * 4 >= 64 << 20
    wide = [by_name("softmax", f"[N,{n}]") for n in gpu_rows.COLUMNS]
    assert {row.elements(*row.sizes) for row in wide} == {gpu_rows.BEYOND_CACHES}
    assert rows_on(CPU) is ROWS


def test_what_is_read_and_what_is_copied():
    def yardstick(op, direction, device):
        return measure.Case(
            by_name(op, "[N,1024]"), SIZE, torch.float32, 1, direction, 0.0, device
        ).yardstick

    assert yardstick("logsumexp", ONE_WAY, CUDA) == "read"
    assert yardstick("logsumexp", BACK, CUDA) == "copy"
    assert yardstick("softmax", ONE_WAY, CUDA) == "copy"
    assert yardstick("logsumexp", ONE_WAY, CPU) == "copy"


@pytest.mark.parametrize("layout", [GPT2, GPT2 + CLIPPED, MANY, MANY + CLIPPED])
def test_the_clip_that_never_waits_clips(layout):
    case = measure.Case(by_name("clip_grad_norm_", layout), SIZE, torch.float32, 1, NO_GRAD, 0.0)
    result = measure.measure(case, ["safeops", KEEP, "torch"], TINY)
    assert [record["agrees_with_torch"] for record in result.records] == [True, True, None]
    assert {record["route"] for record in result.records[:2]} <= {"kernel", "formulas"}


def test_other_libraries(monkeypatch):
    clip = torch.nn.utils.clip_grad_norm_
    liger = types.SimpleNamespace(apply=lambda x: torch.softmax(x, -1))
    found = {"clip_grad_norm_": clip, "LigerSoftmaxFunction": liger}
    monkeypatch.setattr(gpu_rows, "optional", lambda module, name: found[name])
    for row in ROWS:
        more = set(gpu_rows.on_gpu(row).forms) - set(row.forms)
        if row.op == "clip_grad_norm_":
            assert more == {KEEP, APEX}
        elif row.op == "softmax" and row.layout == "[N,1024]":
            assert more == {LIGER}
        elif row.op != "softmax":
            assert not more


def test_a_library_that_is_missing_or_broken(monkeypatch):
    def broken(name):
        raise OSError("libcuda.so: no such file")

    assert gpu_rows.optional("no_such_library", "clip") is None
    assert gpu_rows.optional("math", "no_such_name") is None
    monkeypatch.setattr(gpu_rows.importlib, "import_module", broken)
    assert gpu_rows.optional("apex", "clip") is None


def test_a_library_that_fails_is_reported():
    def failing(step):
        raise TypeError("not for these")

    row = by_name("clip_grad_norm_", MANY)
    row = gpu_rows.replace(row, forms={**row.forms, APEX: failing})
    case = measure.Case(row, SIZE, torch.float32, 1, NO_GRAD, 0.0)
    result = measure.measure(case, ["safeops", APEX, "torch"], TINY)
    assert result.failed == {APEX: "TypeError: not for these"}


# --- what is wanted ------------------------------------------------------------------------------


def test_it_is_wanted_of_a_gpu_alone():
    _, here = check.plan(OPS, (1, 2), compiled=True)
    assert {case.device for case in here} == {CPU}
    lines, there = check.plan(OPS, (1,), True, CUDA)
    assert {(case.device, case.threads) for case in there} == {(CUDA, 1)}
    assert {line.least for line in lines} == {0.85, 2.0, 1.3, None}
    for case, names in there.items():
        assert set(names) <= set(measure.contenders(case.row, compiled=True))
        assert case.row.elements(case.size) * case.dtype.itemsize >= 64 << 20


def test_every_requirement_finds_its_cases():
    for need in gpu_requirements.REQUIREMENTS:
        groups = need.groups((1,))
        assert groups
        assert all(len(group) >= len(need.layouts) for group in groups)


@pytest.mark.parametrize(("waiting", "word"), [(True, "WAITS"), (False, "pass")])
def test_a_clip_that_waits_is_no_queued_one(waiting, word):
    need = next(need for need in gpu_requirements.REQUIREMENTS if need.queued)
    (line,) = check.lines_of(need, (1,))
    times = {KEEP: [1.0] * 3, measure.READ: [1.0] * 3}
    record = measure.record(line.cases[0], times, KEEP, 8, None) | {
        "agrees_with_torch": True,
        "yardstick": "sum",
        "waits_for_gpu": waiting,
    }
    (verdict,) = check.judge([line], [measure.Result(line.cases[0], times, {}, [record], None)])
    assert (verdict.word, verdict.met) == (word, not waiting)
