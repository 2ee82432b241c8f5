"""Attention for a batch in which one sequence is all padding: a softmax over nothing."""

import torch

from safeops import softmax

# Scores of two sequences, two queries and three keys; the second sequence has no real key.
SCORES = torch.tensor([[[1.0, 2.0, 3.0], [0.5, 0.5, 9.0]], [[1.0, 1.0, 1.0], [2.0, 0.0, 2.0]]])
REAL = torch.tensor([[[True, True, False]], [[False, False, False]]])


def report(name, attention):
    temperature = torch.ones((), requires_grad=True)
    weights = attention(SCORES * temperature)
    (weights * torch.arange(3)).sum().backward()
    sums = [round(total, 4) for total in weights.sum(-1).flatten().tolist()]
    print(f"{name:20} rows sum to {sums}  gradient {temperature.grad.item():.4f}")


def added(scores):
    return torch.softmax(scores + torch.where(REAL, 0.0, -torch.inf), -1)


report("torch, -inf added", added)
report("then nan_to_num", lambda scores: added(scores).nan_to_num(0.0))
report("softmax, mask=", lambda scores: softmax(scores, -1, mask=REAL))
