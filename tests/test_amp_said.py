"""GradScaler: what it warns of, what it leaves for others to see, what is an error."""

import math
import warnings

import pytest

import safeops
from safeops import NonFiniteGradientError, NonFiniteGradientWarning
from tests.optimizers import one_thread, plain_and_fused  # noqa: F401
from tests.test_amp_bad import run_of

pytestmark = pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seen", ["loss", "floor", "overflow"])
def test_a_warning_where_the_scale_is_not_the_cause(seen):
    run = run_of(init_scale=1.0 if seen == "floor" else 4.0)
    loss = run.loss(1) * (math.nan if seen == "loss" else 1.0)
    run.scaler.scale(loss).backward()
    run.params[1].grad[0] = math.inf
    run.scaler.step(run.optimizer)
    expected = [] if seen == "overflow" else [NonFiniteGradientWarning]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.scaler.update()
    assert [warning.category for warning in caught] == expected
    assert all(warning.filename == __file__ for warning in caught)


def test_gradients_stay_until_the_step():
    """unscale_ is for looking at them, and a clip after it must hear of what is bad."""
    run = run_of()
    run.scaler.scale(run.loss(1, bad=math.nan)).backward()
    run.scaler.unscale_(run.optimizer)
    assert safeops.clip_grad_norm_(run.params, 1.0, nonfinite="keep").isnan()
    run.scaler.step(run.optimizer)
    assert run.gradients == [None] * 3


def step_and_update(run):
    run.scaler.step(run.optimizer)
    run.scaler.update()


@plain_and_fused
def test_a_step_without_gradients_is_an_error(make):
    """As with torch: a clip without unscale_ has taken them away, say."""
    run = run_of(make)
    run.scaler.scale(run.loss(1))
    with pytest.raises(AssertionError, match="No inf checks"):
        step_and_update(run)


def test_without_a_scale_bad_steps_count_too():
    run = run_of(max_norm=1.0, enabled=False, patience=2)
    run.iterate(1, bad=math.nan)
    assert (run.scaler.verdict, run.scaler.bad_in_a_row) == ("nan", 1)
    with pytest.raises(NonFiniteGradientError, match="2 steps"):
        run.iterate(1, bad=math.nan)
