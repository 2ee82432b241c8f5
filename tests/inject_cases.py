"""A model and a batch to put faults into."""

import torch
from torch import nn

X = torch.arange(12.0).view(4, 3) / 12 + 0.1


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def same(a, b):
    return torch.equal(a.nan_to_num(7), b.nan_to_num(7))
