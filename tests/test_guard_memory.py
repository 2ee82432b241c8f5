"""What a Guard keeps: its snapshots, and at most a hundredth of the parameters beside them."""

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn

from safeops import Guard

WIDTH = 1000
RUN = """
import resource, torch, safeops
side = 10_000
model = torch.nn.Linear(side, side, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.ones(1, side)
guard = safeops.Guard(model, optimizer, snapshots={snapshots}, check_every=2, snapshot_every=2)
for _ in range(5):
    if {guarded}:
        guard.run(lambda: model(x).mean())
    else:
        optimizer.zero_grad()
        model(x).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def live():
    """Bytes of all tensors, each storage counted once."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


def model():
    table = nn.Embedding(4, WIDTH)
    table.register_buffer("mask", torch.ones(WIDTH, WIDTH))  # of the size of the weights
    return nn.Sequential(table, nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


@pytest.mark.parametrize("snapshots", [0, 1, 2])
def test_what_is_kept(snapshots):
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.arange(4)

    def step(run):
        run(lambda: net(x).square().mean())

    def plain(closure):
        optimizer.zero_grad()
        closure().backward()
        optimizer.step()

    step(plain)
    before = live()
    guard = Guard(net, optimizer, snapshots=snapshots, snapshot_every=1)
    for _ in range(3):
        step(guard.run)
    weights = sum(p.nbytes for p in net.parameters())
    state = 3 * weights + sum(b.nbytes for b in net.buffers())
    more = live() - before - snapshots * state
    assert len(guard._recovery.ring) == snapshots
    assert more <= 0.01 * weights


def peak(**how):
    command = [sys.executable, "-c", RUN.format(**how)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_most_that_is_used():
    """By a process that does little else; 1 % of the parameters are 4 MB."""
    weights = 4 * 10_000**2
    plain = peak(guarded=False, snapshots=0)
    assert peak(guarded=True, snapshots=0) - plain <= 0.01 * weights
    assert peak(guarded=True, snapshots=1) - plain <= 1.01 * weights
