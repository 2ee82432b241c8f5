"""When and from what a run is resumed: bad steps, broken checkpoints, another process."""

import subprocess
import sys

import pytest
import torch
from torch import nn, optim

from safeops.guard import GuardWarning, Policy
from tests.guard_resumed import OTHERS, SCHEDULERS, Run, assert_resumes, lbfgs, shuffled

# ---- bad steps, and checkpoints that are broken


@pytest.mark.parametrize("bad", [(2,), (1, 2), (4,), (5, 6)], ids=str)
@pytest.mark.parametrize("make", [optim.AdamW, lbfgs], ids=["AdamW", "LBFGS"])
def test_bad_steps(tmp_path, bad, make):
    """Shortly before the checkpoint and shortly after it."""
    with pytest.warns(GuardWarning, match="the loss is nan"):
        assert_resumes(tmp_path, every=4, bad=bad, optimizer=make)


def test_bad_step_where_one_is_due(tmp_path):
    """A checkpoint that is due at a step that is skipped is written after the next good one."""
    run = Run(tmp_path, checkpoint_every=3)
    with pytest.warns(GuardWarning, match="step 2: skipped"):
        run.train(5, bad=(2,))
    assert Run(tmp_path, seed=1).guard.resume() == 4


def test_broken(tmp_path):
    run = Run(tmp_path, checkpoint_every=2)
    run.train(2)
    before = run.bits()
    run.train(3)
    (tmp_path / "step-00000004" / "rank-00000.pt").write_bytes(b"")
    again = Run(tmp_path, seed=1)
    with pytest.warns(GuardWarning, match=r"step-00000004 is broken.*step-00000002 is read"):
        assert again.guard.resume() == 2
    assert again.bits() == before


def test_nothing_there(tmp_path):
    run = Run(tmp_path)
    before = run.bits()
    assert run.guard.resume() == 0
    with pytest.raises(ValueError, match=r"a directory with checkpoints, got .*elsewhere: give"):
        run.guard.resume(tmp_path / "elsewhere")
    assert run.bits() == before


def test_resumed_while_it_runs(tmp_path):
    """Back to a checkpoint of its own, in the middle of an accumulation."""
    run = Run(tmp_path, checkpoint_every=2, accumulate=2)
    run.train(4)
    before, rest = run.bits(), run.train(3)
    assert run.guard.resume() == 2
    assert run.bits() == before
    assert run.train(3) == rest


@pytest.mark.parametrize("there", [True, False])
def test_counts(tmp_path, there):
    """Of the events, those before the checkpoint included, so that the sum is right."""
    run = Run(tmp_path, checkpoint_every=4 if there else 1000)
    with pytest.warns(GuardWarning, match="skipped"):
        run.train(7, bad=(1, 5))
    again = Run(tmp_path, seed=1)
    done = again.guard.resume()
    with pytest.warns(GuardWarning, match="skipped"):
        again.train(4, bad=(3,))
    report = again.guard.summary()
    assert done == 4 * there
    head = f"{done + 4} steps, {done + 3 - there} good, {1 + there} skipped"
    assert report.summary().startswith(head)
    counts = {"skipped": 2, "resumed": 1} if there else {"skipped": 1}
    assert report.to_dict()["counts"] == counts
    assert [event.kind for event in report.events] == ["resumed"] * there + ["skipped"]


# ---- parameters that are added


def add_group(run):
    layer = nn.Linear(4, 4)
    run.model.add_module("added", layer)
    run.optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.5})


def test_added_before(tmp_path):
    """Without the group the checkpoint does not fit; with it, it does."""
    run = Run(tmp_path, checkpoint_every=4)
    run.train(2)
    add_group(run)
    run.train(2)
    before, rest = run.bits(), run.train(3)
    again = Run(tmp_path, seed=1)
    with pytest.raises(ValueError, match=r"added.bias is only there.*Nothing was changed"):
        again.guard.resume()
    add_group(again)
    assert again.guard.resume() == 4
    assert again.bits() == before
    assert again.train(3) == rest


def test_added_after(tmp_path):
    run = Run(tmp_path, checkpoint_every=4)
    run.train(4)
    add_group(run)
    rest = run.train(3)
    again = Run(tmp_path, seed=1)
    assert again.guard.resume() == 4
    add_group(again)
    assert again.train(3) == rest
    assert again.bits() == run.bits()


def test_added_and_bad():
    """What was good just before is what a roll-back goes to."""
    run = Run(None, policy=Policy(skips=0), snapshot_every=100)
    run.train(2)
    add_group(run)
    run.train(1)
    with pytest.warns(GuardWarning, match="rolled back to step 2"):
        run.train(1, bad=(0,))


# ---- another process


SCRIPT = """
import sys, torch
from tests.guard_resumed import OTHERS, SCHEDULERS, Run, shuffled
torch.set_num_threads(int(sys.argv[2]))
run = Run(sys.argv[1], 7, data=shuffled, scheduler=SCHEDULERS["OneCycle"], others=OTHERS.values())
print(run.guard.resume(), run.train(4), run.bits())
"""


def test_fresh_process(tmp_path):
    options = {"data": shuffled, "scheduler": SCHEDULERS["OneCycle"], "others": OTHERS.values()}
    run = Run(tmp_path, **options)
    run.train(3)
    run.guard.checkpoint()
    told = f"3 {run.train(4)} {run.bits()}"
    command = [sys.executable, "-c", SCRIPT, tmp_path, str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == told
