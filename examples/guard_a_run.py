"""A training run with bad batches in it: the guard skips their steps and says what was wrong."""

import tempfile
import warnings

import torch
from torch import nn

import safeops

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x, y = torch.randn(64, 16, 8), torch.randn(64, 16, 1)
x[20, 3, 5] = float("nan")  # a batch that nobody has looked at

with tempfile.TemporaryDirectory() as folder:
    guard = safeops.Guard(model, optimizer, max_norm=1.0, checkpoint_dir=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", safeops.guard.GuardWarning)  # shown below
        for batch in zip(x, y, strict=True):
            step = guard.run(
                lambda given=batch: nn.functional.mse_loss(model(given[0]), given[1]),
                batch=batch,
            )
    print(guard.summary())
    print(guard.events[0].finding)

assert all(parameter.isfinite().all() for parameter in model.parameters())
