"""GradNormClipper beside schedulers, hooks, other clippers, checkpoints, and torch's GradScaler."""

import math

import pytest
import torch
from torch import nn

from safeops import GradNormClipper, NonFiniteGradientError, NonFiniteGradientWarning
from tests.gradient_samples import Untouched, draw
from tests.optimizers import (
    FORMS,
    Run,
    assert_near,
    each_optimizer,
    one_thread,  # noqa: F401
    plain_and_fused,
)


def clipped(make, max_norm=1.0, **options):
    run = Run(make)
    return run, GradNormClipper(run.optimizer, max_norm, **options)


def torchs(run, seed, size=100.0, max_norm=1.0):
    """A step with torch's clip; at such a size its 1e-6 does not show."""
    run.backward(seed, size)
    torch.nn.utils.clip_grad_norm_(run.params, max_norm)
    run.optimizer.step()


def weight(*gradient):
    """A parameter of zeros."""
    parameter = nn.Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


# --- the arguments -------------------------------------------------------------------------------

WRONG = [
    (TypeError, "a torch optimizer, got str", lambda o: GradNormClipper("SGD", 1.0)),
    (TypeError, "a torch optimizer, got list", lambda o: GradNormClipper(o.param_groups, 1.0)),
    (TypeError, "max_norm, got str", lambda o: GradNormClipper(o, "1")),
    (TypeError, "max_norm, got NoneType", lambda o: GradNormClipper(o, None)),
    (ValueError, "max_norm >= 0, got -1", lambda o: GradNormClipper(o, -1)),
    (ValueError, "max_norm, got NaN", lambda o: GradNormClipper(o, math.nan)),
    (ValueError, "norm_type, got NaN", lambda o: GradNormClipper(o, 1.0, math.nan)),
    (ValueError, "norm_type, got 'two'", lambda o: GradNormClipper(o, 1.0, "two")),
    (ValueError, "skip, drop, keep, raise", lambda o: GradNormClipper(o, 1.0, nonfinite="no")),
]


@pytest.mark.parametrize(("error", "message", "call"), WRONG, ids=[row[1] for row in WRONG])
def test_wrong_arguments(error, message, call):
    """The optimizer stays as it was."""
    parameter = weight(3.0, 4.0)
    optimizer = torch.optim.SGD([parameter], 1.0)
    with pytest.raises(error, match=message):
        call(optimizer)
    optimizer.step()
    assert parameter.tolist() == [-3.0, -4.0]


@plain_and_fused
def test_closures(make):
    """Their gradients do not exist yet, so that a clip would be of old ones."""
    run, _ = clipped(make)
    run.backward(1)
    before = run.state()
    for args, options in (([lambda: 0.0], {}), ([], {"closure": lambda: 0.0})):
        with Untouched(run.params), pytest.raises(RuntimeError, match="without a closure"):
            run.optimizer.step(*args, **options)
    assert run.state() == before
    run.optimizer.step(closure=None)
    run.optimizer.step(None)


# --- names ---------------------------------------------------------------------------------------


def test_names_of_the_optimizer():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.named_parameters(), 0.1, fused=True)
    GradNormClipper(optimizer, 1.0, nonfinite="raise")
    model(torch.full((1, 2), math.inf)).sum().backward()
    with pytest.raises(NonFiniteGradientError) as error:
        optimizer.step()
    assert [row.name for row in error.value.report] == list(dict(model.named_parameters()))
    assert "0.weight (" in str(error.value)


def test_names_of_groups():
    """Also of a group that comes later."""
    params = [weight(1.0), weight(math.nan), weight(1.0), weight(math.inf)]
    optimizer = torch.optim.SGD([{"params": params[:1]}, {"params": params[1:3]}], 0.1)
    GradNormClipper(optimizer, 1.0)
    optimizer.add_param_group({"params": params[3:]})
    message = r"param_groups\[1\]\[0\] \(1 nan\), param_groups\[2\]\[0\] \(1 inf\)\. All"
    with pytest.warns(NonFiniteGradientWarning, match=message):
        optimizer.step()
    assert [p.grad for p in params] == [None] * 4


# --- groups and kinds of gradients ---------------------------------------------------------------


def test_groups_share_one_norm():
    for form in FORMS.values():
        first, second = weight(3.0), weight(4.0)
        groups = [{"params": [first]}, {"params": [second], "lr": 10.0}]
        optimizer = torch.optim.SGD(groups, 1.0, **form)
        clipper = GradNormClipper(optimizer, 1.0)
        optimizer.step()
        assert [first.item(), second.item()] == pytest.approx([-0.6, -8.0])
        assert clipper.total_norm == 5


def test_groups_of_which_one_is_not_fused():
    """It would not take a grad_scale."""
    first, second = weight(3.0), weight(4.0)
    groups = [{"params": [first]}, {"params": [second], "fused": False}]
    optimizer = torch.optim.SGD(groups, 1.0, fused=True)
    GradNormClipper(optimizer, 1.0)
    optimizer.step()
    assert [first.item(), second.item()] == pytest.approx([-0.6, -0.8])


@plain_and_fused
def test_parameters_without_gradients(make):
    run, clipper = clipped(make)
    before = run.state()
    run.optimizer.step()
    assert run.state() == before
    assert (clipper.total_norm.item(), clipper.verdict, clipper.factor) == (0.0, "ok", 1.0)
    run.params[0].grad = torch.full((4, 5), 10.0)
    run.optimizer.step()
    assert clipper.total_norm.item() == pytest.approx(10 * math.sqrt(20))


@plain_and_fused
def test_frozen_parameters(make):
    """As in torch, a step has nothing to do then."""
    run, clipper = clipped(make)
    for param in run.params:
        param.requires_grad_(False)
    before = run.state()
    run.optimizer.step()
    assert run.state() == before
    assert clipper.verdict == "ok"


SPARSE = {
    "SparseAdam": lambda params: torch.optim.SparseAdam(params, 0.1),
    "SGD": lambda params: torch.optim.SGD(params, 0.1),
    "momentum": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
    "Adagrad": lambda params: torch.optim.Adagrad(params, 0.1),
}


def looked_up(make, seed):
    """An embedding with a gradient in which a row comes twice."""
    table = nn.Embedding(6, 4, sparse=True)
    with torch.no_grad():
        table.weight.copy_(draw(6, 4))
    optimizer = make(table.parameters())
    (table(torch.tensor([1, 3, 1])) * draw(3, 4, seed=seed)).sum().backward()
    return table.weight, optimizer


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_sparse(name, max_norm):
    """The norm is that of the matrix, in which the row is summed."""
    ours, optimizer = looked_up(SPARSE[name], 1)
    theirs, other = looked_up(SPARSE[name], 1)
    clipper = GradNormClipper(optimizer, max_norm)
    norm = theirs.grad.to_dense().norm()
    theirs.grad = theirs.grad.coalesce() * min(1.0, max_norm / norm.item())
    optimizer.step()
    other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(clipper.total_norm, norm)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_skip(name):
    parameter, optimizer = looked_up(SPARSE[name], 1)
    GradNormClipper(optimizer, 1.0)
    before = parameter.detach().clone()
    parameter.grad._values()[0, 1] = math.nan
    with pytest.warns(NonFiniteGradientWarning, match="1 nan"):
        optimizer.step()
    assert torch.equal(parameter, before)
    assert all(not value.any() for value in optimizer.state[parameter].values())


# --- company -------------------------------------------------------------------------------------


def scheduled(make, before=lambda optimizer: None, after=lambda optimizer: None):
    """A run with a scheduler; what is done to the optimizer before and after that."""
    run = Run(make)
    before(run.optimizer)
    run.scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.5)
    after(run.optimizer)
    return run


@each_optimizer
@pytest.mark.parametrize("when", ["before", "after"])
def test_scheduler(make, when):
    """It sees every step, the skipped ones too, and does not warn."""
    ours = scheduled(make, **{when: lambda optimizer: GradNormClipper(optimizer, 1.0)})
    theirs = scheduled(make)
    for seed in range(3):
        ours.train(seed, 100.0)
        torchs(theirs, seed)
        ours.scheduler.step()
        theirs.scheduler.step()
    assert_near(ours, theirs)
    with pytest.warns(NonFiniteGradientWarning):
        ours.train(4, bad=math.nan)
    ours.scheduler.step()
    assert ours.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 2**4)


@each_optimizer
def test_remove(make):
    ours, theirs = Run(make), Run(make)
    keys = set(vars(ours.optimizer))
    clipper = GradNormClipper(ours.optimizer, 1.0)
    clipper.remove()
    clipper.remove()
    ours.train(1, 100.0)
    theirs.train(1, 100.0)
    assert ours.state() == theirs.state()
    assert set(vars(ours.optimizer)) == keys
    assert clipper.total_norm is None
