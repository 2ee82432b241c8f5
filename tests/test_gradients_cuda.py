"""The multi-tensor kernels of a GPU, on one or emulated: what they read, and the norm."""
# ruff: noqa: F811  (fixtures)

import math

import pytest
import torch

import safeops
from safeops import _extension
from safeops._lots import Lots
from tests.cases import DTYPES, tiny
from tests.gradient_devices import (  # noqa: F401
    assert_clipped,
    bits,
    contents,
    device,
    each_dtype,
    edges,
    exact_norm_of,
    gpu,
    on,
    placed,
    shifted,
)
from tests.gradient_samples import draw, exact_norm, spread


def test_they_are_in_use(device):
    lots = Lots(on(device, [torch.ones(3), torch.ones(2)]), True)
    assert [lot.readings.on_gpu for lot in lots.lots] == [True]


# --- norms ---------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("p", [2, 1])
def test_sizes(device, dtype, p):
    rows = [draw(n, dtype=dtype, seed=n) for n in edges(dtype)]
    assert_clipped(rows, device, float(exact_norm_of(rows, p) / 3), p)
    for row in rows[:12]:
        assert_clipped([row], device, 0.25, p)


@each_dtype
def test_addresses(device, dtype):
    """Before the first vector and after the last one lie single elements."""
    for n in (1, 5, 14, 15, 16, 40, 1 << 15, (1 << 15) + 9):
        rows = [shifted(draw(n, dtype=dtype, seed=by), by) for by in range(9)]
        assert_clipped(rows, device, 0.5)


@pytest.mark.parametrize("count", [1, 2, 244, 245, 246, 1_000, 3_000])
def test_counts(device, count):
    rows = [draw(1 + k % 5, dtype=DTYPES[k % 4], seed=k) for k in range(count)]
    assert_clipped(rows, device, 0.125)
    assert_clipped([row.float() for row in rows], device, 1e9)


@each_dtype
@pytest.mark.parametrize("n", [1, 17, 9_000])
def test_the_ends_of_the_range(device, dtype, n):
    for value in (torch.finfo(dtype).max, tiny(dtype), torch.finfo(dtype).smallest_normal):
        rows = [torch.full((n,), value, dtype=dtype) for _ in range(3)]
        norm = exact_norm(rows)
        assert_clipped(rows, device, float(norm / 3) if norm < 1e308 else 1e308)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.float64, -1074, 1023.9),
        (torch.float64, 1000, 1023.9),
        (torch.float64, -1074, -1020),
        (torch.float32, -149, 127.9),
    ],
)
def test_ranges(device, dtype, low, high):
    x = spread(70_000, low, high, dtype)
    rows = [x[:100], x[100:20_000], x[20_000:]]
    norm = exact_norm(rows)
    assert_clipped([row.clone() for row in rows], device, float(norm / 7) if norm < 1e308 else 3.0)


def test_beyond_the_range_of_float64(device):
    for value, limit in ((1.7e308, 1.0), (1.7e308, 1e-300), (1.7e308, 1.5e308), (1e-308, 1e-308)):
        rows = [torch.full((1,), value, dtype=torch.float64) for _ in range(4)]
        assert_clipped(rows, device, limit)


def test_strides(device):
    x = draw(2, 3, 4, 5)
    rows = [
        x.to(memory_format=torch.channels_last),
        x.permute(3, 1, 0, 2),
        x[:, :, 1:3],
        x[0, 0, 0],
    ]
    assert_clipped(rows, device, 0.5)


@pytest.mark.parametrize("p", [math.inf, 0, 3])
def test_other_norms(device, p):
    rows = [draw(n, seed=n) for n in (3, 20_000)]
    assert_clipped(rows, device, 0.5, p)


def test_nothing_at_all(device):
    for rows in ([torch.zeros(0)], [torch.zeros(0), torch.zeros(3)], [None, torch.zeros(2)]):
        norm = safeops.clip_grad_norm_(on(device, rows), 1.0)
        assert (norm.item(), norm.dtype) == (0.0, torch.float32)


def test_limits(device):
    rows = [draw(n, dtype=d, seed=n) for n, d in zip((5, 70), DTYPES[:2], strict=True)]
    assert_clipped(rows, device, math.inf)
    params = on(device, rows)
    safeops.clip_grad_norm_(params, 0.0)
    assert all((p.grad == 0).all() for p in params)


@each_dtype
def test_always_the_same_bits(device, dtype):
    rows = [draw(n, dtype=dtype, seed=n) for n in (100_001, 7, 40_000)]
    seen = set()
    for _ in range(3):
        params = on(device, rows)
        norm = safeops.clip_grad_norm_(params, 0.5)
        seen.add(str([bits(norm.cpu()), *(bits(after[-99:]) for after in contents(params))]))
    assert len(seen) == 1


@pytest.mark.cuda
@each_dtype
def test_a_scale_has_the_bits_of_the_cpu(gpu, dtype):
    rows = [spread(5_000, -20, 15, dtype), torch.tensor([math.nan, math.inf, 0.0], dtype=dtype)]
    for value, shift in ((0.7, 0), (0.3, -140), (0.9, 40), (0.6, -1030)):
        here, there = ([placed(row, to) for row in rows] for to in (torch.device("cpu"), gpu))
        for side in (here, there):
            _extension.module.Tensors(side, False).scale(value, shift)
        assert [bits(x) for x in here] == [bits(x.cpu()) for x in there]


# --- what is read --------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("n", [1, 15, 1_000, 40_000])
def test_counts_of_what_is_not_finite(device, dtype, n):
    x = draw(n, dtype=dtype)
    x[:: max(1, n // 7)] = 0
    for k, value in enumerate((math.nan, math.inf, -math.inf, math.inf)):
        x[(k * 13 + n // 2) % n] = value
    found = safeops.check_finite({"x": placed(x, device), "y": placed(x[:0], device)})
    finite, row = torch.where(x.isfinite(), x, 0), found[0]
    assert (row.nan, row.numel) == (x.isnan().sum(), n)
    assert (row.posinf, row.neginf) == ((x == math.inf).sum(), (x == -math.inf).sum())
    assert (row.zeros, row.largest) == ((x == 0).sum(), finite.abs().max())
    assert math.isclose(row.norm, exact_norm([finite]), rel_tol=1e-14)
    assert not found
    assert found[1].numel == 0


def test_one_tensor(device):
    assert safeops.check_finite(placed(torch.ones(2, 3), device))[0].shape == (2, 3)
    assert not safeops.check_finite(placed(torch.tensor(math.nan), device))


def test_reports_have_the_order_of_the_tensors(device):
    rows = [draw(1 + k, dtype=DTYPES[k % 4], seed=k) for k in range(9)]
    report = safeops.clip_report(on(device, rows), 0.5)
    assert [row.numel for row in report] == list(range(1, 10))
    assert [row.dtype for row in report] == [row.dtype for row in rows]
    assert report.verdict == "clipped"
