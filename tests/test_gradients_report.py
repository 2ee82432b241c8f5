"""check_finite and its report: every column against float64, what can be given, how it reads."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

import safeops
from tests.cases import DTYPES
from tests.gradient_samples import (
    EDGES,
    dense,
    draw,
    exact_norm,
    runs_on,
    spread,
)
from tests.samples import label
from tests.test_gradients_kinds import KINDS

COUNTS = ("nan", "posinf", "neginf", "zeros", "subnormal", "numel")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)


def columns(tensor):
    """What a row must say, from the tensor in float64."""
    x = dense(tensor).reshape(-1)
    good = x[x.isfinite()]
    counts = x.isnan().sum(), (x == math.inf).sum(), (x == -math.inf).sum(), (x == 0).sum()
    largest = good.abs().max().item() if good.numel() else 0.0
    parts = torch.view_as_real(x).abs().amax(-1) if x.is_complex() else x.abs()
    small = ((parts > 0) & (parts < torch.finfo(tensor.dtype).tiny)).sum()
    names = dict(zip(COUNTS, [*map(int, (*counts, small)), x.numel()], strict=True))
    return SimpleNamespace(norm=float(exact_norm([good])), largest=largest, **names)


def assert_row(row, expected):
    assert row.norm == pytest.approx(expected.norm, rel=1e-14, abs=0)
    assert row.largest == expected.largest
    assert [getattr(row, name) for name in COUNTS] == [getattr(expected, n) for n in COUNTS]
    assert row.bad == expected.nan + expected.posinf + expected.neginf
    kinds = [type(getattr(row, name)) for name in ("norm", "largest", *COUNTS)]
    assert kinds == [float] * 2 + [int] * 6


def mixed(n, dtype, seed=0):
    """Numbers with zeros, NaN and infinities among them."""
    x = draw(n, dtype=dtype, seed=seed)
    steps = ((3, 0.0), (5, -0.0), (7, math.nan), (9, math.inf), (11, -math.inf))
    for step, value in steps[: 2 if seed % 2 else 5]:
        x[step % (n + 1) :: step] = value
    return x


@each_dtype
def test_columns(route, dtype):
    tensors = [mixed(n, dtype, seed) for seed, n in enumerate(EDGES)]
    with runs_on(route):
        report = safeops.check_finite(tensors)
    assert len(report) == len(EDGES)
    for row, tensor in zip(report, tensors, strict=True):
        assert_row(row, columns(tensor))
        assert (row.shape, row.dtype) == (tensor.shape, tensor.dtype)
    assert_row(report.total, columns(torch.cat(tensors)))
    assert report.total.name == "total"
    assert not report.finite
    assert not report


def test_columns_over_the_range(route):
    for dtype, low, high in ((torch.float64, -1074, 1010), (torch.float32, -149, 127.9)):
        for ends in ((low, high), (high - 9, high), (low, low + 40)):
            x = spread(1_000, *ends, dtype)
            assert_row(safeops.check_finite(x)[0], columns(x))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_kind(route, kind):
    tensors = [tensor for tensor in KINDS[kind]() if tensor is not None]
    report = safeops.check_finite(tensors)
    for row, tensor in zip(report, tensors, strict=True):
        expected = columns(tensor)
        if tensor.layout is torch.sparse_coo:
            row = row._replace(zeros=expected.zeros, numel=expected.numel)
        assert_row(row, expected)
        assert (row.shape, row.dtype) == (tensor.shape, tensor.dtype)
    assert report.finite


def test_only_bad_elements(route):
    for bad in (math.nan, math.inf, -math.inf):
        report = safeops.check_finite(torch.full((50,), bad))
        assert_row(report[0], columns(torch.full((50,), bad)))
        assert (report.finite, report[0].norm, report[0].largest) == (False, 0.0, 0.0)


@pytest.mark.parametrize("bad", [complex(math.nan, 1), complex(2, math.inf), complex(-math.inf, 0)])
def test_complex(route, bad):
    """An element is bad if a part of it is, and counts once."""
    x = torch.tensor([3 + 4j, bad, 0])
    row = safeops.check_finite(x)[0]
    assert (row.norm, row.largest, row.bad, row.zeros, row.numel) == (5.0, 5.0, 1, 1, 3)
    assert row.nan == (bad != bad)


# --- what can be given -------------------------------------------------------------------------


def test_names():
    x, y = torch.ones(2), torch.full((3,), math.nan)
    pairs = [("x", x), ("y", y)]
    for given in (dict(pairs), pairs, (pair for pair in pairs), dict(pairs).items()):
        report = safeops.check_finite(given)
        assert [row.name for row in report] == ["x", "y"]
        assert [row.name for row in report.bad] == ["y"]
    assert [row.name for row in safeops.check_finite([x, y], names=["a", "b"])] == ["a", "b"]
    assert len(safeops.check_finite(x)) == 1
    with pytest.raises(ValueError, match=r"\b2\b.*\b1\b"):
        safeops.check_finite([x, y], names=["a"])


def test_integers_are_left_out():
    """The others keep their places and names."""
    tensors = [torch.arange(3), torch.ones(2), torch.ones(2, dtype=torch.bool), torch.zeros(1)]
    rows = safeops.check_finite(tensors)
    assert [row.name[-3:] for row in rows] == ["[1]", "[3]"]
    for given in (dict(zip("abcd", tensors, strict=True)), zip("abcd", tensors, strict=True)):
        assert [row.name for row in safeops.check_finite(given)] == ["b", "d"]
    assert [row.name for row in safeops.check_finite(tensors, names="abcd")] == ["b", "d"]
    assert len(safeops.check_finite(torch.arange(3))) == 0


def model():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    net(draw(5, 3)).sum().backward()
    return net


def test_module():
    net = model()
    net[2].bias.grad = None
    net[0].weight.grad[1, 2] = math.inf
    net[1].running_mean[0] = math.nan
    report = safeops.check_finite(net)
    rows = {row.name: row for row in report}
    params = {name for name, _ in net.named_parameters()}
    grads = {f"{name}.grad" for name in params} - {"2.bias.grad"}
    assert set(rows) == params | grads | {"1.running_mean", "1.running_var"}
    assert {row.name for row in report.bad} == {"0.weight.grad", "1.running_mean"}
    assert_row(rows["0.weight.grad"], columns(net[0].weight.grad))
    assert {row.name for row in safeops.check_finite(net, grads=False)} == set(rows) - grads


def test_nothing_to_check():
    for given in ([], {}, torch.nn.Identity(), torch.empty(0), [torch.arange(2)]):
        report = safeops.check_finite(given)
        assert (report.finite, bool(report), report.bad) == (True, True, [])
        assert (report.total.numel, report.total.norm, report.total.largest) == (0, 0.0, 0.0)
        assert str(report)
        json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("bad", ["x", 3, None, [1.0], ["x"], {"a": 1.0}, [None]], ids=repr)
def test_no_tensors(bad):
    with pytest.raises(TypeError, match="tensor"):
        safeops.check_finite(bad)


def test_a_report_is_of_its_moment(route):
    """What is written later does not change it."""
    x, z = draw(50), draw(7, dtype=torch.complex64)
    expected = columns(x)
    report = safeops.check_finite([x, z])
    x.fill_(math.nan)
    z.zero_()
    assert report.finite
    assert_row(report[0], expected)
    assert report[1].zeros == 0


# --- how it reads ------------------------------------------------------------------------------


def report_of(n, bad=()):
    rows = [draw(3 + i % 4, seed=i) * 2.0 ** (i % 9) for i in range(n)]
    for i in bad:
        rows[i][i % 3 :] = math.nan
        rows[i][0] = -math.inf
    return safeops.check_finite([(f"layer{i:02}.weight", row) for i, row in enumerate(rows)])


@pytest.mark.parametrize(
    "column", ["norm", "largest", "nan", "posinf", "neginf", "zeros", "subnormal", "numel", "name"]
)
def test_sorted_views(column):
    report = report_of(12, bad=(4, 9))
    for reverse in (True, False):
        rows = report.sorted_by(column, reverse=reverse)
        values = [getattr(row, column) for row in rows]
        assert values == sorted(values, reverse=reverse)
        assert sorted(map(str, rows)) == sorted(map(str, report))
    assert report.sorted_by(column) == report.sorted_by(column, reverse=True)


def test_sorted_by_what_is_no_column():
    for column in ("size", "", "shape"):
        with pytest.raises(ValueError, match=r"norm.*largest.*numel"):
            report_of(2).sorted_by(column)


def test_a_report_is_a_sequence():
    report = report_of(5, bad=(1, 3))
    assert list(report) == [report[i] for i in range(len(report))]
    assert report[-1] == list(report)[-1]
    assert report[1:3] == list(report)[1:3]
    assert [row.name for row in report.bad] == ["layer01.weight", "layer03.weight"]
    assert report[0]._fields == ("name", "shape", "dtype", "norm", "largest", *COUNTS)
    assert isinstance(report[0], safeops.TensorStats)
    with pytest.raises(IndexError):
        report[5]


def test_printed():
    """A line that sums up, then a table: bad ones first, twenty at most."""
    text = str(report_of(25, bad=(7, 23)))
    summary, *table = text.splitlines()
    assert "2" in summary
    assert "layer" not in summary
    named = [line.split()[0] for line in table if line.startswith("layer")]
    good = [i for i in range(25) if i not in (7, 23)]
    assert named == [f"layer{i:02}.weight" for i in [7, 23, *good[:18]]]
    assert table[-1] == "... and 5 more"
    assert "more" not in str(report_of(20))


def test_to_dict():
    report = report_of(3, bad=(1,))
    plain = report.to_dict()
    again = json.loads(json.dumps(plain))
    assert again == plain
    text = json.dumps(report_of(3).to_dict(), allow_nan=False)
    assert "float32" in text
    assert "[3]" in text
    assert plain["finite"] is False
