"""A module that is sick, for tests of the swap."""

import torch
from torch import nn


class Sick(nn.Module):
    """Divides by zero in its own code and in a child."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.softmax = nn.Softmax(-1)
        self.note = "mine"

    def forward(self, x, scale: float = 1.0):
        return self.softmax(x.log()) / x.sum() * scale


ZERO = torch.zeros(2, 3)


def classes(model):
    return [type(module) for module in model.modules()]
