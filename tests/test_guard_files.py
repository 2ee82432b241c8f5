"""Checkpoints that cannot be written, or are not those of this run."""

import errno
import os

import pytest
import torch
from torch import nn

from safeops._random import random_state, set_random_state
from safeops.guard import GuardWarning, Policy, TrainingDiverged
from tests.guard_resumed import INF, NAN, OTHERS, Model, Run, bits, everything, files, of, spoilt

# ---- checkpoints


def weight(run):
    spoilt(run.model, "layers.4.weight", INF)


def buffer(run):
    run.model.layers[1].running_var[2] = NAN


def moment(run):
    run.optimizer.state[run.model.layers[0].weight]["exp_avg_sq"][0, 0] = NAN


def average(run):
    spoilt(run.others[0], "module.layers.0.weight")


SPOILT = {
    weight: r"layers.4.weight \(1 inf",
    buffer: r"layers.1.running_var \(1 nan",
    moment: r"exp_avg_sq of layers.0.weight \(1 nan",
    average: r"others\[0\].module.layers.0.weight \(1 nan",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_never_written(tmp_path, spoil):
    run = Run(tmp_path, others=[OTHERS["average"]])
    run.train(2)
    run.guard.checkpoint()
    spoil(run)
    before, there = everything(run), files(tmp_path)
    with pytest.raises(ValueError, match=f"a finite state to write: .*{SPOILT[spoil]}"):
        run.guard.checkpoint()
    assert (everything(run), files(tmp_path)) == (before, there)


class Masked(Model):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((4, 4), -INF).triu(1))


def test_mask(tmp_path):
    """Infinities that were there at the start are meant."""
    run = Run(tmp_path, model=Masked, checkpoint_every=2, check_every=1)
    run.train(2)
    before = run.bits()
    again = Run(tmp_path, seed=1, model=Masked)
    again.model.mask.zero_()
    assert again.guard.resume() == 2
    assert again.bits() == before


def no_space(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk(tmp_path, monkeypatch):
    """A checkpoint that is due is left out; one that is asked for is an error."""
    losses = (whole := Run(None)).train(6)
    run = Run(tmp_path, checkpoint_every=2)
    assert run.train(2) == losses[:2]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        text = r"step 4: checkpoint failed; .*step-00000004 was not written: No space.*Make room"
        with pytest.warns(GuardWarning, match=text):
            assert run.train(3) == losses[2:5]
        before = everything(run)
        with pytest.raises(OSError, match=r"step-00000005 was not written: No space") as caught:
            run.guard.checkpoint()
        assert caught.value.errno == errno.ENOSPC
        assert everything(run) == before
    assert run.train(1) == losses[5:]
    assert run.bits() == whole.bits()
    assert [event.kind for event in run.guard.events] == [
        "checkpoint",
        "checkpoint_failed",
        "checkpoint",
    ]
    assert [path.name for path in sorted(tmp_path.glob("step*"))] == [
        "step-00000002",
        "step-00000006",
    ]


class Unwritable(torch.Tensor):
    """As one of a library that lies elsewhere."""

    def __reduce_ex__(self, protocol):
        raise RuntimeError("give: no memory of its own")


class Local:
    """With a state that no checkpoint can hold."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        pass


UNWRITABLE = {
    "function": (print, TypeError, r"builtin_function_or_method in others\[0\].value: give"),
    "tensor": (torch.ones(2).as_subclass(Unwritable), RuntimeError, "no memory of its own"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
@pytest.mark.parametrize("how", ["asked for", "due"])
def test_unwritable_state(tmp_path, how, name):
    """Named, and the checkpoint before it is there still."""
    value, kind, text = UNWRITABLE[name]
    losses = Run(None).train(2)
    others = [lambda run: Local(value)]
    run = Run(tmp_path, others=others, checkpoint_every=1 if how == "due" else 9)
    before = files(tmp_path)
    if how == "due":
        with pytest.warns(GuardWarning, match=f"checkpoint failed.*{text}"):
            assert run.train(2) == losses
    else:
        with pytest.raises(kind, match=text):
            run.guard.checkpoint()
    assert [name for name in files(tmp_path) if name != "guard.jsonl"] == before


def half_a_step(run):
    run.guard.run(lambda: of(run).square().mean())


def before_a_step(run):
    of(run).square().mean().backward()
    run.guard.before_step(1.0)


@pytest.mark.parametrize(("half", "accumulate"), [(half_a_step, 2), (before_a_step, 1)])
def test_no_checkpoint_in_a_step(tmp_path, half, accumulate):
    """It would have no gradients, and the other half would come alone after a resume."""
    run = Run(tmp_path, accumulate=accumulate)
    half(run)
    before = files(tmp_path)
    with pytest.raises(RuntimeError, match="between two steps, got it within one"):
        run.guard.checkpoint()
    assert files(tmp_path) == before


def narrow():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


# ---- two runs in a directory

STRANGERS = r"for this run alone, got .* another one \(step-00000000\): call guard.resume\(\) first"


def stranger(folder, what="same"):
    """A checkpoint of another run appears."""
    Run(folder, model=Model if what == "other" else narrow).guard.checkpoint()
    if what == "broken":
        (folder / "step-00000000" / "manifest.json").write_text("{")


@pytest.mark.parametrize("snapshots", [0, 2])
@pytest.mark.parametrize("what", ["same", "other", "broken"])
def test_strangers_before(tmp_path, what, snapshots):
    """Neither a step nor a checkpoint; also where it would fit."""
    stranger(tmp_path, what)
    run = Run(tmp_path, seed=1, model=narrow, snapshots=snapshots)
    before, there = everything(run), files(tmp_path)
    calls = [lambda: run.guard.run(lambda: of(run).square().mean()), run.guard.checkpoint]
    for call in calls * 2:
        with pytest.raises(FileExistsError, match=STRANGERS):
            call()
    assert (everything(run), files(tmp_path)) == (before, there)


def test_strangers_resumed(tmp_path):
    """They are its own then, and the oldest is removed in time."""
    stranger(tmp_path)
    run = Run(tmp_path, seed=1, model=narrow, checkpoint_every=1, checkpoints=2)
    assert run.guard.resume() == 0
    run.train(2)
    names = [path.name for path in sorted(tmp_path.glob("step*"))]
    assert names == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("what", ["same", "other", "broken"])
def test_strangers_meanwhile(tmp_path, what):
    """What is due is not written, and the run goes on; what is asked for is an error."""
    losses = Run(None, model=narrow).train(4)
    run = Run(tmp_path, model=narrow, checkpoint_every=2)
    assert run.train(1) == losses[:1]
    numbers = random_state()
    stranger(tmp_path, what)
    set_random_state(numbers)
    there = files(tmp_path)
    assert "guard.jsonl" in there
    with pytest.warns(GuardWarning, match=f"step 2: checkpoint failed; .*{STRANGERS}"):
        assert run.train(1) == losses[1:2]
    with pytest.raises(FileExistsError, match=STRANGERS):
        run.guard.checkpoint()
    assert files(tmp_path) == there


@pytest.mark.parametrize("what", ["same", "other", "broken"])
def test_no_roll_back_to_strangers(tmp_path, what):
    run = Run(tmp_path, seed=1, model=narrow, snapshots=0, policy=Policy(skips=0))
    run.train(1)
    stranger(tmp_path, what)
    before = bits(dict(run.model.named_parameters()))
    with pytest.raises(TrainingDiverged, match="no snapshot or checkpoint to go back to"):
        run.train(1, bad=(0,))
    assert bits(dict(run.model.named_parameters())) == before


def test_no_roll_back_to_a_newer_one(tmp_path):
    """Another process has resumed the run, and its checkpoint is the newest there."""
    options = {"model": narrow, "snapshots": 0, "policy": Policy(skips=0)}
    run = Run(tmp_path, checkpoint_every=2, **options)
    run.train(3)
    other = Run(tmp_path, seed=1, **options)
    assert other.guard.resume() == 2
    other.train(1)
    other.guard.checkpoint()
    before = bits(dict(run.model.named_parameters()))
    with pytest.raises(TrainingDiverged, match="no snapshot or checkpoint to go back to"):
        run.train(1, bad=(0,))
    assert bits(dict(run.model.named_parameters())) == before


def test_roll_back_from_the_disk(tmp_path):
    """To the newest of its own."""
    run = Run(tmp_path, model=narrow, snapshots=0, policy=Policy(skips=0), checkpoint_every=2)
    run.train(2)
    before = bits(dict(run.model.named_parameters()))
    run.train(1)
    with pytest.warns(GuardWarning, match="rolled back to step 2"):
        run.train(1, bad=(0,))
    assert bits(dict(run.model.named_parameters())) == before


def test_resume_of_broken(tmp_path):
    run = Run(tmp_path, checkpoint_every=2)
    run.train(3)
    (tmp_path / "step-00000002" / "manifest.json").write_text("{")
    before = everything(run)
    with pytest.raises(RuntimeError, match=r"all 1 are broken: step-00000002: manifest.json"):
        run.guard.resume()
    assert everything(run) == before
