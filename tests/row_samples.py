"""Rows for the row ops: kinds that are hard, every combination of special values, and the ways in
which rows lie in a tensor."""

import itertools
import math

import torch

from tests.cases import tiny


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(rows, n, seed=0):
    return torch.randn(rows, n, generator=generator(seed), dtype=torch.float64)


def uniform(rows, n, seed=0):
    return torch.rand(rows, n, generator=generator(seed), dtype=torch.float64)


def _with(x, where, value):
    """x with these columns set."""
    x = x.clone()
    x[:, where] = value
    return x


def _steps(rows, n, first, last):
    return torch.linspace(first, last, n, dtype=torch.float64).expand(rows, n).clone()


def _wide(rows, n):
    return normal(rows, n) * 10.0 ** (uniform(rows, n, 1) * 30 - 26)


def _tied(rows, n):
    return (normal(rows, n) * 2).round().clamp(max=2)


def _sparse(rows, n):
    """Mostly -inf, but for the first and some others."""
    x = normal(rows, n).masked_fill(uniform(rows, n, 1) < 0.9, -math.inf)
    return torch.cat([normal(rows, 1, 2), x[:, 1:]], 1)


# kinds of rows, float64 of (rows, n)
KINDS = {
    "normal": lambda r, n: normal(r, n) * 3,
    "nearly equal": lambda r, n: normal(r, n) * 1e-3,
    "flat": lambda r, n: uniform(r, n) * 0 + 3.7,
    "one large": lambda r, n: _with(normal(r, n), n // 3, 20.0),
    "one huge": lambda r, n: _with(normal(r, n), n // 3, 3e4),
    "largest last": lambda r, n: _with(normal(r, n), -1, 25.0),
    "largest last by 59": lambda r, n: _with(normal(r, n), -1, 59.3),
    "largest last by 61": lambda r, n: _with(normal(r, n), -1, 61.7),
    "largest last by 90": lambda r, n: _with(normal(r, n), -1, 90.1),
    "ascending": lambda r, n: _steps(r, n, -83.3, 7.1) + normal(r, n) * 1e-3,
    "descending": lambda r, n: _steps(r, n, 7.1, -83.3) + normal(r, n) * 1e-3,
    "steep steps": lambda r, n: _steps(r, n, -3e4, 3e4),
    "-inf first": lambda r, n: _with(normal(r, n), slice(0, n // 2), -math.inf),
    "-inf last": lambda r, n: _with(normal(r, n), slice((n + 1) // 2, n), -math.inf),
    "all but the last -inf": lambda r, n: _with(normal(r, n), slice(0, n - 1), -math.inf),
    "mostly -inf": _sparse,
    "-1e30 first": lambda r, n: _with(normal(r, n), slice(0, n // 2), -1e30),
    "-1e30 in every second": lambda r, n: _with(normal(r, n), slice(1, None, 2), -1e30),
    "-1e30 everywhere": lambda r, n: normal(r, n) * 0 - 1e30,
    "alternating": lambda r, n: _with(normal(r, n) + 60, slice(0, None, 2), -60.0),
    "far from zero": lambda r, n: normal(r, n) + 1e4,
    "far below zero": lambda r, n: normal(r, n) - 3e4,
    "every size": _wide,
    "ties": _tied,
    "to the subnormals": lambda r, n: _with(-80 - 25 * uniform(r, n), n // 2, 1.0),
    "cancels": lambda r, n: normal(r, n) * 1e-2 - math.log(n),
}


def of_kind(kind, rows, n, dtype):
    """Finite stays finite: half types have no -1e30."""
    x = KINDS[kind](rows, n)
    limit = torch.finfo(dtype).max
    return torch.where(x.isfinite(), x.clamp(-limit, limit), x).to(dtype)


def specials(dtype, n=3):
    """Every row of n special values, beside each other: (rows, n)."""
    limit = torch.finfo(dtype).max
    values = [0.0, 1.0, -tiny(dtype), limit, -limit, math.inf, -math.inf, math.nan]
    return torch.tensor(list(itertools.product(values, repeat=n)), dtype=torch.float64).to(dtype)


def masks(n=3):
    """Every mask of n elements, (2**n, n)."""
    return torch.tensor(list(itertools.product([True, False], repeat=n)))


def masked_specials(dtype, n=3):
    """Every row of special values under every mask, both (rows, n)."""
    x, mask = specials(dtype, n), masks(n)
    return x.repeat_interleave(len(mask), 0), mask.repeat(len(x), 1)


def random_mask(*shape, share=0.7, seed=3):
    return torch.rand(shape, generator=generator(seed)) < share


# rows along a dim: from (rows, n) to a contiguous tensor, the dim, and back
AXES = {
    "last": (lambda x: x, -1),
    "first": (lambda x: x.T.contiguous(), 0),
    "middle": (lambda x: x.view(-1, 2, x.shape[1]).transpose(1, 2).contiguous(), 1),
}


def along(axis, rows):
    """The rows (an even number of them) as a contiguous tensor with its rows along a dim."""
    lay, dim = AXES[axis]
    return lay(rows), dim


def scores(*shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=generator(seed)) * 3).to(dtype)


def upstream_like(op, x, dim, seed=5):
    upstream = scores(*x.shape, dtype=x.dtype, seed=seed)
    return upstream.select(dim, 0) if op.reduces else upstream
