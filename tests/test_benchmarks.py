"""The benchmark tool: its contenders agree, its files are whole, its errors are clear.

Nothing here asserts a time.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks import check, elementwise, machine, measure, report, requirements, softmax, timing
from benchmarks.rows import BACK, BOTH, DIRECTIONS, ONE_WAY, N, Row
from benchmarks.suite import ROWS
from tests.routes import Recorder

SIZE = 3072
HEALTHY = {
    "div": lambda x, y=3.0: torch.as_tensor(y) != 0,
    "log": lambda x: x > 0,
    "sqrt": lambda x: x > 0,
    "finite_clip": torch.isfinite,
}
FAMILY = tuple(softmax.FAMILY)
BY_ROW = pytest.mark.parametrize(
    "row", [row for row in ROWS if row.takes(ONE_WAY)], ids=lambda row: f"{row.op} {row.layout}"
)
TINY = timing.Effort(seconds=0.0, least=3)


def case(row, direction=ONE_WAY, threads=1, singular=measure.SINGULAR):
    return measure.Case(row, SIZE, torch.float32, threads, direction, singular)


def by_op(op, layout=None):
    return next(row for row in ROWS if row.op == op and layout in (None, row.layout))


def small_row(**forms):
    """A row that is not of the suite: its forms are given x of 64 elements."""
    inputs = elementwise.positive
    return Row("log", "[N]", ((N,),), inputs, {"torch": torch.log, **forms}, sizes=(64,))


# --- rows --------------------------------------------------------------------------------------


@BY_ROW
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contenders_agree_at_healthy_points(row, dtype):
    inputs = row.tensors(SIZE, dtype, measure.SINGULAR)
    expected = row.forms["torch"](*inputs)
    healthy = ~expected.isnan() if row.op in FAMILY else HEALTHY[row.op](*inputs)
    assert set(row.forms) >= {"safeops", "torch"}
    for form in row.forms.values():
        value, like = torch.broadcast_tensors(form(*inputs), expected)
        keep = healthy.expand_as(value)
        torch.testing.assert_close(value[keep], like[keep])


@BY_ROW
def test_gradients_agree_where_all_is_healthy(row):
    inputs, upstream = measure.inputs_of(case(row, BOTH, singular=0.0))
    expected = row.forms["torch"](*inputs)
    upstream = torch.where(expected.isfinite(), upstream, 0.0)  # -inf where log_softmax is masked
    grads = {
        name: measure.call_of(form, BOTH, inputs, upstream)() for name, form in row.forms.items()
    }
    for own in grads.values():
        torch.testing.assert_close(own, grads["torch"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", HEALTHY)
def test_share_of_singular_elements(op):
    *_, x = by_op(op).tensors(100_000, torch.float32, 0.01)
    assert 0.008 < (~HEALTHY[op](*[x] * (1 + (op == "div")))).float().mean() < 0.012


@pytest.mark.parametrize(("layout", "dim"), [("[N,64]", 1), ("[64,N] dim 0", 0)])
def test_share_of_guarded_rows(layout, dim):
    (x,) = by_op("softmax", layout).tensors(640_000, torch.float32, 0.01)
    assert 0.007 < x.isneginf().all(dim).float().mean() < 0.013
    assert 0.007 < x.isneginf().float().mean() < 0.013


@pytest.mark.parametrize("kind", softmax.MASKS)
def test_masks_leave_no_row_empty(kind):
    x, mask = by_op("softmax", f"[N,8,256,256] {kind}").tensors(4 << 20, torch.float16, 0.0)
    assert (x.dtype, mask.dtype) == (torch.float16, torch.bool)
    assert x.shape == (8, 8, 256, 256)
    assert mask.any(-1).all()
    assert not mask.all()


def test_layouts_of_the_softmax_family():
    for op in FAMILY:
        assert [row.layout_at(*row.sizes) for row in ROWS if row.op == op] == [
            "[4096,64]",
            "[4096,1024]",
            "[8,128000]",
            "[512,32000]",
            "[64,4096] dim 0",
            "[1024,4096] dim 0",
            "[32000,512] dim 0",
            "[128000,8] dim 0",
            "[8,128,4096] dim 1",
            "[8,8,256,256] causal",
            "[8,8,256,256] padding",
        ]


@BY_ROW
def test_the_layout_tells_the_shapes(row):
    shapes = row.shapes_at(SIZE)
    assert [x.shape for x in row.tensors(SIZE, torch.float32, 0.0)] == shapes
    if row.layout.startswith("["):
        assert row.layout_at(SIZE).startswith(str(list(shapes[0])).replace(" ", ""))


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
    assert measure.bytes_moved([x, y], result, ONE_WAY) == 4 * (32 + 4 + 32)
    assert measure.bytes_moved([x, y], result, BACK) == 4 * (32 + 2 * 36)
    assert measure.bytes_moved([x, y], result, BOTH) == 4 * (68 + 32 + 2 * 36)


def test_bytes_moved_with_a_mask_and_of_a_reduction():
    x, mask, result = torch.ones(8, 4), torch.ones(4, dtype=torch.bool), torch.ones(8)
    assert measure.bytes_moved([x, mask], result, ONE_WAY) == 4 * 32 + 4 + 4 * 8
    assert measure.bytes_moved([x, mask], result, BACK) == 4 * 8 + 4 * 32 + 4 + 4 * 32


def test_the_backward_alone_computes_its_value_once():
    values = []

    def form(x):
        values.append(x.log())
        return values[-1]

    result = measure.measure(case(small_row(safeops=form), BACK), ["safeops", "torch"], TINY)
    assert len(result.times["safeops"]) == TINY.least
    assert len(values) == 1


def test_one_thread_beside_several():
    seen = {}

    def form(x):
        seen.setdefault(torch.get_num_threads(), []).append(x)
        return x.log()

    alone = measure.ONE_THREAD + "safeops"
    where = case(small_row(safeops=form), threads=2)
    result = measure.measure(where, ["safeops", alone], TINY)
    assert {record["contender"] for record in result.records} == {"safeops", alone}
    assert all(len(seen[count]) > TINY.least for count in (1, 2))
    assert timing.speed(result.times, "safeops", alone) > 0


def test_wrong_numbers_are_no_speed(monkeypatch):
    row = small_row(safeops=lambda x: x.log() * 1.001)
    monkeypatch.setattr(requirements, "rows_on", lambda device: (row,))
    need = requirements.Requirement(("log",), (), (ONE_WAY,), "torch", 0.0, layouts=("[N]",))
    lines = check.lines_of(need, (1,))
    result = measure.measure(lines[0].cases[0], ["safeops", "torch"], TINY)
    assert [record["agrees_with_torch"] for record in result.records] == [False, None]
    (verdict,) = check.judge(lines, [result])
    assert (verdict.word, verdict.met) == ("WRONG", False)
    assert "safeops differs from torch" in report.failures([result])[0]


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


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_record_names_the_route_that_ran(direction):
    result = measure.measure(case(by_op("log"), direction), {"safeops", "torch"}, TINY)
    kernel = machine.why_no_kernels() is None
    routes = {record["contender"]: record["route"] for record in result.records}
    assert routes == {"safeops": "kernel" if kernel else "formulas", "torch": "eager"}


@BY_ROW
def test_the_timed_call_runs_the_kernels_if_there_are_any(row):
    where = case(row, BOTH)
    call = measure.call_of(row.forms["safeops"], BOTH, *measure.inputs_of(where))
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
