"""What a sick program is, and the data that make it so; the programs are in sick_*.py.

A data set is healthy but for row BAD (and what a program says), which turns up once an epoch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

ROWS, BAD, SIZE = 640, 500, 16
BATCH = slice(BAD - BAD % SIZE, BAD - BAD % SIZE + SIZE)  # the rows of the batch that holds BAD

adam = functools.partial(torch.optim.Adam, lr=1e-2)
sgd = functools.partial(torch.optim.SGD, lr=1e-1)


@dataclass(frozen=True)
class Sick:
    """A program that trains into NaN, written as people write it.

    fault: what they write.
    make: the model; its forward takes a batch and returns the loss.
    batches: the batch of a step.
    cured_by: the names in safeops that guard it.
    clip: the max_norm of clip_grad_norm_, where it is called.
    """

    name: str
    fault: str
    make: Callable[[], nn.Module]
    batches: Callable[[int], Any]
    cured_by: tuple[str, ...]
    optimizer: Callable[..., torch.optim.Optimizer] = sgd
    clip: float | None = None
    dtype: torch.dtype = torch.float32

    def batch(self, step):
        return tuple(t.to(self.dtype) if t.is_floating_point() else t for t in self.batches(step))


class Net(nn.Module):
    """A linear model; what follows it is the program."""

    def __init__(self, inputs=4, outputs=3, bias=True):
        super().__init__()
        self.net = nn.Linear(inputs, outputs, bias=bias)


class Embedder(Net):
    """The same, and nothing comes from nothing."""

    def __init__(self, inputs=4, outputs=3):
        super().__init__(inputs, outputs, bias=False)


def cycle(*tensors, size=SIZE):
    """Batch after batch of a data set, over and over; the last of an epoch may be smaller."""
    batches = list(zip(*(tensor.split(size) for tensor in tensors), strict=True))
    return lambda step: batches[step % len(batches)]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features(bad=None, width=4, rows=ROWS):
    """Standard normal features, and a row BAD that is not."""
    x = normal(rows, width)
    if bad is not None:
        x[BAD] = torch.as_tensor(bad, dtype=x.dtype)
    return x


def scores(x, count, seed=1):
    """What there is to learn: a linear function of the features."""
    return x @ normal(x.shape[-1], count, seed=seed)


def labels(x, count=3):
    return scores(x, count).argmax(-1)


def changed(tensor, index, value):
    """A copy with other values at an index."""
    tensor = tensor.clone()
    tensor[index] = torch.as_tensor(value, dtype=tensor.dtype)
    return tensor
