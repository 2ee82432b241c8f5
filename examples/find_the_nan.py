"""A model that becomes NaN some time: one run names the operation, the line and the batch."""

import torch
from torch import nn

from safeops.diagnose import audit, detect


class Ratio(nn.Module):
    """Predicts how many of the clicks are sales."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus())

    def forward(self, x, clicks, sales):
        expected = self.net(x).squeeze(-1) * clicks
        return ((sales / clicks - expected / clicks) ** 2).mean()


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(640, 4, generator=generator)
    clicks = torch.randint(1, 50, (640,), generator=generator).float()
    clicks[501] = 0  # nobody has seen this one
    return x, clicks, (0.1 * clicks).round()


def train(steps=60):
    torch.manual_seed(0)
    model, tensors = Ratio(), data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = list(zip(*(tensor.split(16) for tensor in tensors), strict=True))
    with detect(model) as found:
        for step in range(steps):
            loss = model(*batches[step % len(batches)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if found.findings:
                break
    return model, found, batches[step % len(batches)]


model, found, batch = train()
first = found.first
print(f"found   {first.op} ({first.direction}) in step {first.step}: {first.cause}")
print(f"line    {first.source.line}: {first.source.text}")
print(f"result  {first.counts}, first at {list(first.index)}")
print(f"remedy  {first.remedy}")
print(f"audit   {audit(model).summary()}")
