"""Sick programs: attention and pooling over nothing but padding."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.sick import BAD, ROWS, Sick, changed, cycle, labels, normal


class Sequences(nn.Module):
    """Sequences with padding, of which a classifier sees the mean of what an encoder makes."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, batch):
        x, padding, y = batch
        return F.cross_entropy(self.head(self.encode(x, padding)), y)


class AttentionByHand(Sequences):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def encode(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        score = (q @ k.transpose(-2, -1)) / 2
        weights = F.softmax(score.masked_fill(padding[:, None], -torch.inf), dim=-1)
        return (x + weights @ v).mean(1)


class Attention(Sequences):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def encode(self, x, padding):
        h, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=True)
        return (x + h).mean(1)


class AttentionPooling(Sequences):
    """log_softmax over the words, to weigh them."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 1)

    def encode(self, x, padding):
        score = self.score(x).squeeze(-1).masked_fill(padding, -torch.inf)
        weights = torch.log_softmax(score, dim=-1).exp()
        return (weights[..., None] * x).sum(1)


class SmoothMaximum(Sequences):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def encode(self, x, padding):
        bias = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        return torch.logsumexp(self.inner(x) + bias[..., None], dim=1).clamp(min=-10)


class MaximumThenGelu(Sequences):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def encode(self, x, padding):
        h = self.inner(x).masked_fill(padding[..., None], -torch.inf)
        return F.gelu(h.amax(1))


words = normal(ROWS, 5, 4)
some = changed(normal(ROWS, 5, seed=8) > 1, (slice(None), 0), False)
padding = changed(some, BAD, True)
text = cycle(words, padding, labels((words * ~some[..., None]).sum(1)))

PROGRAMS = (
    Sick(
        "attention_by_hand",
        "softmax(masked_fill(-inf)) of a sequence that is all padding",
        AttentionByHand,
        text,
        cured_by=("nn.functional.softmax",),
    ),
    Sick(
        "attention",
        "MultiheadAttention(need_weights=True) of a sequence that is all padding",
        Attention,
        text,
        cured_by=("nn.functional.multi_head_attention_forward",),
    ),
    Sick(
        "attention_pooling",
        "log_softmax(masked_fill(-inf)) of a sequence that is all padding",
        AttentionPooling,
        text,
        cured_by=("log_softmax",),
    ),
    Sick(
        "smooth_maximum",
        "logsumexp of x + a mask of -inf, of a sequence that is all padding",
        SmoothMaximum,
        text,
        cured_by=("logsumexp",),
    ),
    Sick(
        "maximum_then_gelu",
        "gelu(-inf) of the maximum over nothing",
        MaximumThenGelu,
        text,
        cured_by=("nn.functional.gelu",),
    ),
)
