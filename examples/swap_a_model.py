"""A model that dies of three faults, made safe by one line, its source untouched."""

import torch
from torch import nn

import safeops


class Pooling(nn.Module):
    """Attention over the words of a sentence, and the entropy of the weights as a penalty."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, words, real):
        scores = self.score(self.norm(words)).squeeze(-1).masked_fill(~real, -torch.inf)
        weights = scores.softmax(-1)  # a sentence without words: NaN
        entropy = -(weights * weights.log()).sum(-1).mean()  # 0 * log 0: NaN
        pooled = (weights[..., None] * words).sum(-2)
        pooled = pooled / pooled.norm(dim=-1, keepdim=True)  # 0 / 0: NaN
        return self.head(pooled), entropy


def data():
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(64, 5, 8, generator=generator)
    lengths = torch.randint(1, 6, (64,), generator=generator)
    lengths[7] = 0
    return words, torch.arange(5) < lengths[:, None], (words[:, 0, 0] > 0).long()


def train(model, steps=200):
    words, real, labels = data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        logits, entropy = model(words, real)
        loss = nn.functional.cross_entropy(logits, labels) + 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def model():
    torch.manual_seed(0)
    return Pooling()


print(f"torch      loss after training {train(model()):.3f}")
safe = model()
report = safeops.swap_(safe)
print(f"swapped    loss after training {train(safe):.3f}")

words, real, _ = data()
with report.guarded() as counts:
    safe(words, real)
for row in counts:
    line = row.source.rpartition(":")[2]
    print(f"guarded    {row.op} at line {line}: {row.values} values, {row.gradients} gradients")
safeops.unswap_(safe)
