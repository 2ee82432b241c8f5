"""The subnormals of a read: every half bit pattern, edges of the others, and no mode hides one."""

import contextlib

import pytest
import torch

import safeops
from safeops import _extension
from tests.cases import DTYPES
from tests.gradient_samples import runs_on
from tests.samples import label
from tests.test_levels import LEVELS, skip_what_the_machine_lacks

HALVES = (torch.float16, torch.bfloat16)
MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
SIZES = (1, 3, 15, 16, 17, 100, 16_385)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)


def pattern(bits, dtype):
    """The numbers with these bits."""
    return torch.tensor(bits, dtype=INTEGERS[dtype.itemsize]).view(dtype)


def edges(dtype):
    """Either side of 0 and of the smallest normal number, of both signs, and how many are which."""
    least = 2 ** MANTISSA[dtype]
    sizes = [0, 1, 2, least // 2, least - 1, least, least + 1, 2 * least]
    sign = torch.iinfo(INTEGERS[dtype.itemsize]).min
    return pattern([*sizes, *(sign + size for size in sizes)], dtype), 2, 8


@contextlib.contextmanager
def flushed(flush):
    if not torch.set_flush_denormal(flush):
        pytest.skip("a processor that cannot flush")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def read(x, route, kernel=True):
    """Zeros and subnormals. Without a `kernel` for such tensors both routes take the formulas."""
    with runs_on(route, kernel):
        row = safeops.check_finite([x])[0]
    return row.zeros, row.subnormal


@pytest.mark.parametrize("dtype", HALVES, ids=label)
def test_every_pattern(route, dtype):
    """Zeros and subnormals are those of exponent 0."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    assert read(every, route) == (2, 2 * (2 ** MANTISSA[dtype] - 1))
    for number in every[:: 2**15 // 64 + 1]:
        alone = read(number, route)
        size = int(number.view(torch.int16)) & 0x7FFF
        assert alone == (size == 0, 0 < size < 2 ** MANTISSA[dtype])


@each_dtype
@pytest.mark.parametrize("flush", [False, True], ids=["kept", "flushed"])
def test_edges(route, dtype, flush):
    x, zeros, subnormal = edges(dtype)
    with flushed(flush):
        assert read(x, route) == (zeros, subnormal)
        assert read(x.repeat(3)[1:-1], route) == (3 * zeros - 1, 3 * subnormal)


@each_dtype
def test_smallest_normal(route, dtype):
    """As torch has it."""
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([tiny, -tiny, tiny / 2, -tiny / 2, 0.0], dtype=dtype)
    assert read(x, route) == (1, 2)


@each_dtype
@pytest.mark.parametrize("n", SIZES)
def test_places(route, dtype, n):
    """Wherever it lies in a vector, a block or a chunk; beside what is not finite too."""
    small = torch.finfo(dtype).tiny / 4
    for places in ([0], [n - 1], [n // 2], range(0, n, 3)):
        x = torch.ones(n, dtype=dtype)
        x[list(places)] = small
        assert read(x, route) == (0, len(set(places)))
        if n > 1:
            x[(places[0] + 1) % n] = float("nan")
            lost = len(set(places) & {(places[0] + 1) % n})
            assert read(x, route) == (0, len(set(places)) - lost)


def test_layouts(route):
    x = edges(torch.float32)[0].reshape(4, 4)
    assert read(x.t(), route) == (2, 8)
    assert read(x[:, 1::2], route, kernel=False) == (0, 4)


def test_complex(route):
    """By the larger part of an element."""
    small = 2.0**-130
    numbers = [complex(small, 0), complex(0, -small), complex(small, 1), complex(0, 0), 1j]
    x = torch.tensor(numbers)
    assert read(x, route, kernel=False) == (1, 2)
    assert read(x.conj(), route, kernel=False) == (1, 2)
    assert read(x.conj().imag, route, kernel=False) == (2, 1)


def test_where_it_is_said(route):
    x = torch.tensor([1.0, 2.0**-140, 0.0])
    with runs_on(route):
        report = safeops.check_finite({"x": x, "y": x})
    assert report.total.subnormal == 2
    assert [row["subnormal"] for row in report.to_dict()["tensors"]] == [1, 1]
    assert report.sorted_by("subnormal")[0].name == "x"
    assert "subnormal" in str(report)
    parameter = torch.zeros(3, requires_grad=True)
    parameter.grad = x
    with runs_on(route):
        assert safeops.clip_report([parameter], 10.0)[0].subnormal == 1


def test_each_level(kernel):
    """With every kind of read: the first knows the norm alone, the second may lack subnormals."""
    module, before = _extension.module, _extension.module.level()
    try:
        for level in module.levels():
            if level in LEVELS:
                skip_what_the_machine_lacks(level)
            module.use_level(level)
            for dtype in DTYPES:
                x, zeros, subnormal = edges(dtype)
                batch = module.Tensors([torch.cat([x.repeat(2_000), x[:3]])], False)
                rows = [batch.read(2, columns).rows()[0] for columns in range(3)]
                counts = 2_000 * zeros + 1, 2_000 * subnormal + 2
                assert [row[6] for row in rows] == [0, counts[0], counts[0]]
                assert rows[2][6:8] == counts
                assert len({row[:2] for row in rows}) == 1
                assert rows[1][2] == rows[2][2] == x.abs().max()
    finally:
        module.use_level(before)
    for columns in (-1, 3):
        with pytest.raises(ValueError, match="3 kinds"):
            batch.read(2, columns)
