"""detect names the operation, module, line and cause of every sick program."""

import functools
import warnings
from contextlib import nullcontext

import pytest
import torch

from safeops.diagnose import detect
from tests.detect_cases import EXPECTED
from tests.sick_programs import PROGRAMS
from tests.test_sick import SOON, _finite, _step

programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
COMPILED_BEFORE = ("log_of_softmax", "contrastive", "attention", "half_squared_error")


def detected(program, prepare=lambda model: model):
    """What is found until the program is dead."""
    torch.manual_seed(0)
    model = prepare(program.make().to(program.dtype))
    optimizer = program.optimizer(model.parameters())
    with warnings.catch_warnings(), detect(model) as found:
        warnings.simplefilter("ignore")  # the variance of one sample
        for number in range(SOON):
            _step(program, model, optimizer, number)
            if found.findings or not _finite(model.parameters()):
                break
    return found


def assert_as_expected(program, found, prefix=""):
    expected, first = EXPECTED[program.name], found.first
    assert first is not None, f"{program.fault}: nothing found"
    module = first.module.removeprefix("_orig_mod").removeprefix(".")
    got = first.op, first.direction, module, first.cause
    assert got == expected[:4]
    assert first.source.text.startswith(expected.line)
    assert first.counts.nan + first.counts.posinf + first.counts.neginf > 0
    assert first.remedy


def test_every_program_has_its_row():
    assert set(EXPECTED) == {program.name for program in PROGRAMS}


@programs
def test_names_it(program):
    assert_as_expected(program, detected(program))


@programs
def test_names_it_in_a_compiled_model(program):
    assert_as_expected(
        program, detected(program, functools.partial(torch.compile, backend="eager"))
    )


@pytest.mark.parametrize("name", COMPILED_BEFORE)
def test_names_it_in_a_model_that_ran_compiled(name):
    (program,) = (program for program in PROGRAMS if program.name == name)

    def compiled(model):
        torch._dynamo.reset()
        model = torch.compile(model, backend="aot_eager")
        model(program.batch(0))
        return model

    assert_as_expected(program, detected(program, compiled))


@programs
def test_the_call_that_cures_is_named(program):
    first = detected(program).first
    if "safeops.swap_" in first.remedy:
        name = first.remedy.split(" ")[0].removeprefix("safeops.")
        assert name.removeprefix("nn.functional.") in {
            cure.removeprefix("nn.functional.") for cure in program.cured_by
        }


@programs
def test_trains_as_without(program):
    """The same bits, until the step in which it dies."""
    plain, watched = (
        _trained(program, context) for context in (lambda model: nullcontext(), detect)
    )
    for one, other in zip(plain, watched, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def _trained(program, context):
    torch.manual_seed(0)
    model = program.make().to(program.dtype)
    optimizer = program.optimizer(model.parameters())
    with warnings.catch_warnings(), context(model):
        warnings.simplefilter("ignore")
        for number in range(8):
            _step(program, model, optimizer, number)
    return list(model.parameters())
