"""Closures and calls that are wrong: an error that says so, and the run goes on as before."""

from functools import partial

import pytest
import torch

from safeops.guard import GuardWarning
from tests.guard_resumed import SCALERS, SCHEDULERS, Run, everything, lbfgs, of

# ---- closures


def raising(run):
    of(run)
    raise KeyError("mine")


def backward(run):
    loss = of(run).square().mean()
    loss.backward()
    return loss


TENSOR = "the loss, a tensor of one element with a graph, got"
CLOSURES = {
    "none": (lambda run: print(of(run).sum(), end=""), TypeError, f"{TENSOR} NoneType: return"),
    "number": (lambda run: of(run).sum().item(), TypeError, f"{TENSOR} float"),
    "pair": (lambda run: (of(run).sum(), 1), TypeError, f"{TENSOR} tuple"),
    "vector": (lambda run: of(run).sum(0), ValueError, rf"{TENSOR} the shape \[4\]: take"),
    "empty": (lambda run: of(run)[:0], ValueError, rf"{TENSOR} the shape \[0, 4\]"),
    "detached": (lambda run: of(run).sum().detach(), ValueError, "one that does not require grad"),
    "raises": (raising, KeyError, "mine"),
    "backward": (backward, RuntimeError, "backward through the graph a second time"),
}
HOW = {
    "plain": {},
    "scaler": {"scaler": SCALERS["torch"]},
    "own scaler": {"scaler": SCALERS["ours"]},
    "LBFGS": {"optimizer": lbfgs},
    "parts": {"accumulate": 2},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", CLOSURES)
def test_closures(name, how):
    """In a run that goes on as if the closure had not been; its gradients are gone, as ever."""
    closure, kind, text = CLOSURES[name]
    whole, run = Run(None, **HOW[how]), None
    losses = whole.train(6)
    run = Run(None, **HOW[how])
    assert run.train(2) == losses[:2]
    before = run.bits()
    with pytest.raises(kind, match=text):
        run.guard.run(partial(closure, run))
    assert run.bits() == before
    assert [parameter.grad for parameter in run.model.parameters()] == [None] * 6
    assert run.train(4) == losses[2:]
    assert run.bits() == whole.bits()


def test_closure_that_fails_later():
    """In the second evaluation that LBFGS asks for, when it has moved the weights."""
    run, calls = Run(None, optimizer=lbfgs), iter([1, 1, 0])
    run.train(2)
    with pytest.warns(GuardWarning, match="skipped"):
        run.train(1, bad=(0,))
    before = run.bits()
    with pytest.raises(ZeroDivisionError):
        run.guard.run(lambda: of(run).square().mean() / (1 // next(calls)))
    assert next(calls, None) is None
    assert run.bits() == before


# ---- calls


CALLS = {
    "no closure": (lambda run: run.guard.run(3), TypeError, "function closure, got int"),
    "a loss": (lambda run: run.guard.run(torch.ones(())), TypeError, "closure, got Tensor"),
    "vector": (lambda run: run.guard.step(torch.ones(2)), ValueError, r"the shape \[2\]: take"),
    "text": (lambda run: run.guard.step("1"), TypeError, "a tensor or a number, got str"),
    "true": (lambda run: run.guard.before_step(True), TypeError, "number, got bool"),
    "after_step": (lambda run: run.guard.after_step(), RuntimeError, r"before_step\(\) with"),
    "no directory": (lambda run: run.guard.checkpoint(), ValueError, "checkpoint_dir=..."),
    "nothing to resume": (lambda run: run.guard.resume(), ValueError, "checkpoint_dir=..."),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    call, kind, text = CALLS[name]
    run = Run(None)
    run.train(2)
    before = everything(run)
    with pytest.raises(kind, match=text):
        call(run)
    assert everything(run) == before


@pytest.mark.parametrize("name", ["step", "before_step"])
def test_no_step_of_lbfgs(name):
    run = Run(None, optimizer=lbfgs)
    run.train(1)
    before = everything(run)
    with pytest.raises(RuntimeError, match=r"expected run\(closure\)"):
        getattr(run.guard, name)()
    assert everything(run) == before


@pytest.mark.parametrize("name", ["step", "before_step"])
def test_no_loss(name):
    """The loss may be left out; then that of the result is not known."""
    run = Run(None)
    of(run).square().mean().backward()
    result = getattr(run.guard, name)()
    assert (result.verdict, str(result.loss)) == ("ok", "nan")


@pytest.mark.parametrize("name", ["step", "before_step"])
def test_step_before_backward(name):
    run = Run(None, scheduler=SCHEDULERS["Step"])
    run.train(2)
    run.optimizer.zero_grad()
    before = everything(run)
    with pytest.raises(RuntimeError, match=r"gradients, got none .*: call loss.backward\(\)"):
        getattr(run.guard, name)(1.0)
    assert everything(run) == before
