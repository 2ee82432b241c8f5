"""Inputs for an op: bit sweeps, special values against each other, upstream gradients."""

import itertools

import torch

from safeops.testing import bit_sweep, special_values


def sweep(op, dtype, n=600):
    """n random bit patterns an input, paired at random, and all special values in pairs."""
    random = [bit_sweep(dtype, n, seed)[:n] for seed in range(op.arity)]
    shuffled = [shuffle(tensor, seed) for seed, tensor in enumerate(random)]
    near = _near(shuffled[0], op.arity)
    return [torch.cat(parts) for parts in zip(specials(op, dtype), shuffled, near, strict=True)]


def shuffle(tensor, seed):
    generator = torch.Generator().manual_seed(seed)
    return tensor[torch.randperm(tensor.numel(), generator=generator)]


def _near(x, arity):
    """Operands of like size: the pairs of a sweep are mostly of very different ones."""
    factor = torch.linspace(0.3, 3.0, x.numel()).to(x.dtype)
    return [x, x * factor][:arity]


def specials(op, dtype, only_finite=False):
    """Every combination of special values, one flat tensor an input."""
    values = special_values(dtype)
    values = values[values.isfinite()] if only_finite else values
    return [t.flatten().contiguous() for t in torch.meshgrid(*[values] * op.arity, indexing="ij")]


def upstreams(like):
    """Upstream gradients: ones, ordinary ones, and a sweep with zeros, inf and NaN in it."""
    generator = torch.Generator().manual_seed(9)
    ordinary = torch.randn(like.shape, generator=generator).to(like.dtype)
    wild = bit_sweep(like.dtype, max(like.numel(), 60), 5)
    return torch.ones_like(like), ordinary, shuffle(wild, 7)[: like.numel()]


def unary_and_pairs(ops, *others):
    """Rows of a parametrisation: each op with each combination of the others."""
    return list(itertools.product(ops, *others))


def label(value):
    """A short name of a parameter."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return ",".join(f"{name}={number}" for name, number in value.items()) or "default"
    return getattr(value, "name", None)
