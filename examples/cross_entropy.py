"""A hand-written cross-entropy and a KL divergence that meet the probability 0: log(0)."""

import torch

from safeops import safe_log


def gradient(loss, x):
    return [round(value, 4) for value in torch.autograd.grad(loss, x)[0].tolist()]


# The right class is the last one; its probability underflows to exactly 0.
logits = torch.tensor([200.0, 0.0, 1.0], requires_grad=True)
print("probabilities     ", torch.softmax(logits, 0).tolist())
for name, log in (("torch.log", torch.log), ("safe_log", safe_log)):
    loss = -log(torch.softmax(logits, 0)[2])
    print(f"{name:18} cross-entropy {loss.item():.4f}  gradient {gradient(loss, logits)}")

# 0 * log(0) is 0 in a KL divergence, but 0 * -inf is NaN.
p = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
q = torch.tensor([0.25, 0.5, 0.25])
for name, log in (("torch.log", torch.log), ("safe_log", safe_log)):
    loss = (p * (log(p) - log(q))).sum()
    print(f"{name:18} KL {loss.item():.4f}  gradient {gradient(loss, p)}")

# Clamped, log has no slope below the bound and a parameter that got there stays there.
# extend="linear" goes on along the tangent, and gradient descent pulls it back.
for extend in ("clamp", "linear"):
    x = torch.tensor(-0.5, requires_grad=True)
    for _ in range(500):
        loss = safe_log(x, eps=0.1, extend=extend).square()
        loss.backward()
        with torch.no_grad():
            x -= 0.005 * x.grad
            x.grad = None
    print(f'extend="{extend}"'.ljust(18), f"x went from -0.5 to {x.item():.4f}; log(x) = 0 at 1")
