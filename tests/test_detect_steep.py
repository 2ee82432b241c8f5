"""The logarithm of a positive number whose reciprocal is no number of the dtype: finite itself,
with a slope that is not."""

import math

import pytest
import torch
from torch import nn

from safeops.diagnose import detect

SUBNORMAL = {
    torch.float32: 1e-40,
    torch.float64: 1e-310,
    torch.float16: 6e-8,
    torch.bfloat16: 1e-40,
}
STEEP = ("infinite slope", "backward")


class Logged(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inner, self.function = nn.Identity(), function

    def forward(self, x):
        return self.function(self.inner(x)).sum()


def found(function, *values, dtype=torch.float32):
    x = torch.tensor(values, dtype=dtype, requires_grad=True)
    model = Logged(function)
    with detect(model) as detection:
        model(x).backward()
    return detection.first, x.grad


@pytest.mark.parametrize("function", [torch.log, torch.log2, torch.log10])
@pytest.mark.parametrize("dtype", SUBNORMAL, ids=str)
def test_steep(function, dtype):
    first, gradient = found(function, 1.0, SUBNORMAL[dtype], dtype=dtype)
    assert gradient[1] == math.inf
    assert (first.cause, first.direction) == STEEP
    assert "safe_log" in first.remedy


@pytest.mark.parametrize("function", [torch.log, torch.log2, torch.log10])
@pytest.mark.parametrize("value", [0.0, -1e-40, -1.0])
def test_beyond_the_domain(function, value):
    """That is said of what is no positive number, however small."""
    first, _ = found(function, 1.0, value)
    assert first.cause == "log of a non-positive number"


@pytest.mark.parametrize("function", [torch.log, torch.log2, torch.log10])
def test_steep_but_finite(function):
    """At the smallest normal number the slope is 2^126."""
    first, gradient = found(function, torch.finfo(torch.float32).tiny)
    assert first is None
    assert gradient.isfinite().all()
