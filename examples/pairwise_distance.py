"""Distances between points of which two coincide: the derivative of sqrt at 0 is infinite."""

import torch

from safeops import safe_sqrt

points = [[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]]


def distances(sqrt, x):
    return sqrt((x[:, None] - x).square().sum(-1))


def spread_out(sqrt, steps=50):
    """Gradient descent until the mean distance is 10."""
    x = torch.tensor(points, requires_grad=True)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad((distances(sqrt, x).mean() - 10).square(), x)
        x = (x - 0.5 * gradient).detach().requires_grad_()
    return x


def with_epsilon(x):
    """The usual repair; every distance is now a little wrong, and 0 is 0.0001."""
    return torch.sqrt(x + 1e-8)


for name, sqrt in (
    ("torch.sqrt", torch.sqrt),
    ("x + 1e-8", with_epsilon),
    ("safe_sqrt", safe_sqrt),
):
    between = distances(sqrt, torch.tensor(points))[1, 2].item()
    mean = distances(sqrt, spread_out(sqrt)).mean().item()
    print(f"{name:12} equal points {between:.4f} apart; mean distance after training {mean:.4f}")
