"""Models with a fault, and what detect finds in a step of them."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from safeops.diagnose import detect


class Block(nn.Module):
    """A linear layer, and what a test does to its output."""

    def __init__(self, act):
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), act

    def forward(self, x):
        return self.act(self.lin(x))


class Deep(nn.Module):
    """The act is in blocks.1.1."""

    def __init__(self, act, keep=False):
        super().__init__()
        self.first, self.keep = nn.Linear(4, 4), keep
        acts = (torch.tanh, act)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), Block(a)) for a in acts])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + (block(x) if self.keep is False else self.again(block, x))
        return x

    def again(self, block, x):
        return checkpoint(block, x, use_reentrant=self.keep == "reentrant")


def flat(x):
    return (0 * x).sqrt()


def below(x):
    return torch.log(-(x * x) - 1)


def huge(x):
    return (x + 20) * 1e30 * 1e30


def step(model, x=None, optimizer=None):
    loss = model(torch.ones(2, 4) if x is None else x).sum()
    loss.backward()
    if optimizer is not None:
        optimizer.step()


def found_in(model, x=None, **options):
    with detect(model, **options) as found:
        step(model, x)
    return found
