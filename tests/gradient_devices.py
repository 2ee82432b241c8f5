"""Gradients on a GPU, or on the CPU where its tensors are those of an emulated GPU."""

import math

import pytest
import torch

import safeops
from safeops import _queued
from tests.cases import DTYPES
from tests.cuda_devices import DEVICES, EMULATED, gpu, placed, shifted  # noqa: F401
from tests.gradient_samples import (
    assert_close,
    assert_norm,
    exact_norm,
    mpmath,
    result_dtype,
    scaled,
    unique,
)
from tests.samples import label

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda":
        return request.getfixturevalue("gpu")
    return torch.device("cpu")


@pytest.fixture(params=["looks", "looks away"])
def host(request, monkeypatch):
    """Where kernels are emulated the host may look at a decision, as it may not on a GPU."""
    if request.param == "looks away":
        monkeypatch.setattr(_queued, "_is_host", lambda norm: False)
    return request.param


def on(device, rows):
    """Parameters with these gradients there, which keep their strides and offsets."""
    return [parameter(None if row is None else placed(row, device)) for row in rows]


def parameter(gradient):
    like = torch.ones(2) if gradient is None else gradient
    leaf = torch.nn.Parameter(torch.ones_like(like, memory_format=torch.contiguous_format))
    leaf.grad = gradient
    return leaf


def contents(params):
    return [None if p.grad is None else p.grad.cpu().clone() for p in params]


def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8).tolist()


def ulps(dtype):
    return 8 if dtype is torch.float64 else 1


def exact_norm_of(rows, p):
    """A sum of magnitudes that fsum rounds once is quicker than one of mpmath's numbers."""
    if p != 1:
        return exact_norm(unique(rows), p)
    return mpmath.mpf(math.fsum(abs(x) for row in unique(rows) for x in row.reshape(-1).tolist()))


def assert_clipped(rows, device, max_norm, p=2.0, **options):
    """The norm and what is left, against exact numbers."""
    exact, params = exact_norm_of(rows, p), on(device, rows)
    norm = safeops.clip_grad_norm_(params, max_norm, p, **options)
    wide = 8 if result_dtype(rows) is torch.float64 else 1
    assert (norm.device.type, norm.dtype) == (device.type, result_dtype(rows))
    assert_norm(norm.cpu(), exact, wide)
    factor = min(mpmath.mpf(1), mpmath.mpf(max_norm) / exact) if exact else mpmath.mpf(1)
    for row, after in zip(rows, contents(params), strict=True):
        assert_close(after, scaled(row, factor), ulps(row.dtype))


def edges(dtype):
    vector = 16 // dtype.itemsize
    chunk = (1 << 16) // dtype.itemsize
    near = (vector, 32 * vector, 256 * vector, 1024 * vector, chunk, 2 * chunk, 9 * chunk)
    return sorted({0, 1, 2, 3, *(n + by for n in near for by in (-1, 0, 1))})
