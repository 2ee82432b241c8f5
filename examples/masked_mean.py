"""The mean over a selection that may be empty: 0 / 0."""

import torch

from safeops import safe_div

# Three sentences of up to four words; the loss of each word; which words are real.
losses = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 7.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
real = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def masked_mean(divide, weight):
    total = (weight * losses * real).sum(1)
    return divide(total, real.sum(1))


def report(name, divide):
    weight = torch.ones((), requires_grad=True)
    means = masked_mean(divide, weight)
    means.sum().backward()
    print(f"{name:20} means {means.tolist()}  gradient {weight.grad.item()}")


def masked_afterwards(total, count):
    """The usual repair: the value is right, the gradient is not."""
    return torch.where(count > 0, total / count, 0.0)


report("torch", torch.div)
report("torch, then where", masked_afterwards)
report("safe_div", safe_div)
