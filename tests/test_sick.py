"""Sick programs die as they are, and train for 1,000 steps once their ops are swapped."""

import copy
import functools
import math
import statistics
import warnings
from dataclasses import dataclass, field

import pytest
import torch

import safeops
from tests.sick import Sick
from tests.sick_programs import PROGRAMS

SOON, LONG = 200, 1000  # steps in which a program dies, and in which it has to live
WINDOW = 40  # steps: an epoch
programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


@dataclass
class Run:
    """What became of a training run: it ends at the first step that is not finite."""

    losses: list[float] = field(default_factory=list)
    died: str = ""


def _finite(tensors):
    return bool(torch.cat([tensor.detach().flatten() for tensor in tensors]).isfinite().all())


def _step(program, model, optimizer, number):
    """The loss of one step, and what in it is not finite."""
    loss = model(program.batch(number))
    optimizer.zero_grad()
    loss.backward()
    parameters = list(model.parameters())
    sick = "" if _finite([p.grad for p in parameters if p.grad is not None]) else "gradient"
    if program.clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, program.clip)
    optimizer.step()
    if sick and not _finite(parameters):
        sick = "parameter"
    return loss.item(), sick


def _train(program, steps, prepare):
    torch.manual_seed(0)
    model = program.make().to(program.dtype)
    prepare(model)
    optimizer, run = program.optimizer(model.parameters()), Run()
    while len(run.losses) < steps and not run.died:
        loss, sick = _step(program, model, optimizer, len(run.losses))
        run.losses.append(loss)
        run.died = sick if math.isfinite(loss) else "loss"
    if not run.died and not _finite(model.parameters()):
        run.died = "parameter"
    return run


@functools.cache
def _plain(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the variance of one sample
        return _train(program, SOON, lambda model: None)


def test_programs_are_many_and_distinct():
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 28
    assert {program.dtype for program in PROGRAMS} == {
        torch.float32,
        torch.float16,
        torch.bfloat16,
    }


@programs
def test_dies_as_it_is(program: Sick):
    run = _plain(program)
    assert run.died in ("loss", "parameter"), f"{program.fault}: alive, at {run.losses[-1]}"


@programs
def test_trains_once_swapped(program: Sick):
    run = _train(program, LONG, safeops.swap_)
    assert not run.died, f"{program.fault}: the {run.died} of step {len(run.losses)}"
    first, last = statistics.median(run.losses[:20]), statistics.median(run.losses[-100:])
    assert last < first - 0.1 * abs(first), f"{program.fault}: from {first} to {last}"


@programs
def test_is_the_same_until_then(program: Sick):
    healthy = _plain(program).losses[:-1]
    run = _train(program, len(healthy), safeops.swap_)
    close = max(1e-3, 32 * torch.finfo(program.dtype).eps)
    assert run.losses == pytest.approx(healthy, rel=close)


@programs
def test_the_report_names_what_guards(program: Sick):
    """Of the steps around the one that kills the plain program."""
    if program.name == "poisoned_batch_norm":  # a statistic that is refused is no element
        return
    torch.manual_seed(0)
    model = program.make().to(program.dtype)
    report, optimizer = safeops.swap_(model), program.optimizer(model.parameters())
    last = len(_plain(program).losses)
    for number in range(last - WINDOW):
        _step(program, model, optimizer, number)
    with report.guarded() as counts:
        for number in range(max(last - WINDOW, 0), last + WINDOW):
            _step(program, model, optimizer, number)
    assert {f"safeops.{name}" for name in program.cured_by} & {row.op for row in counts}
    assert all(row.source.split(":")[0].endswith(".py") for row in counts)


@programs
def test_undone_it_is_as_before(program: Sick):
    torch.manual_seed(0)
    model = program.make().to(program.dtype).eval()
    classes = [type(module) for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    expected = copy.deepcopy(model)(program.batch(0))
    safeops.swap_(model)
    safeops.unswap_(model)
    assert [type(module) for module in model.modules()] == classes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(model(program.batch(0)), expected, rtol=0, atol=0, equal_nan=True)
