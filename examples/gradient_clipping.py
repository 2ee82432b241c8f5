"""One bad batch in a training run, and gradients whose squares overflow: clip_grad_norm_."""

import warnings

import torch

import safeops

warnings.simplefilter("ignore", safeops.NonFiniteGradientWarning)  # it names the parameters
CLIPS = {"torch": torch.nn.utils.clip_grad_norm_, "safeops": safeops.clip_grad_norm_}


def train(clip, bad_step=20, steps=40):
    """A small regression; at one step a target is infinite. The last loss, and the weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(steps):
        x = torch.randn(32, 4)
        y = x.sum(1, keepdim=True)
        if step == bad_step:
            y[3] = float("inf")
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        clip(model.parameters(), max_norm=1.0)
        optimizer.step()
    return loss.item(), model[0].weight.abs().max().item()


for name, clip in CLIPS.items():
    loss, largest = train(clip)
    print(f"{name:8} after one bad batch: loss {loss:.1f}, largest weight {largest:.1f}")

# Large but finite gradients: the squares overflow in torch, and the clip silently erases them.
for name, clip in CLIPS.items():
    weight = torch.nn.Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), 1e20)
    norm = clip([weight], max_norm=1.0)
    print(f"{name:8} of four 1e20: norm {norm.item():.3g}, clipped to {weight.grad.tolist()}")

# What the same read knows about every gradient.
model = torch.nn.Linear(2, 2)
model.weight.grad = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]])
model.bias.grad = torch.tensor([0.5, -0.5])
report = safeops.clip_report(model, max_norm=1.0, nonfinite="drop")
print(report)
print("what is left", model.weight.grad.tolist())
