"""NaN and infinities among the gradients: what each policy returns, says and leaves behind."""

import itertools
import math

import pytest
import torch

import safeops
from safeops import NonFiniteGradientError, NonFiniteGradientWarning
from tests.cases import DTYPES
from tests.gradient_samples import (
    Untouched,
    assert_close,
    assert_norm,
    bits,
    clip_on,
    dense,
    draw,
    exact_norm,
    parameters,
    runs_on,
    scaled,
)
from tests.oracle import mpmath
from tests.samples import label

BAD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
POLICIES = ("skip", "drop", "keep", "raise")
NORMS = (2, 1, math.inf, -math.inf, 0, 0.5, -1)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
each_bad = pytest.mark.parametrize("bad", BAD.values(), ids=BAD)


def spoiled(bad, *places, dtype=torch.float32):
    """Three parameters; at each place (tensor, element) lies a bad number."""
    gradients = [draw(4, 5, dtype=dtype), draw(3, dtype=dtype), draw(70, dtype=dtype)]
    for tensor, element in places:
        gradients[tensor].view(-1)[element] = bad
    return parameters(*gradients)


@each_bad
@each_dtype
def test_skip(route, dtype, bad):
    for p in NORMS:
        params = spoiled(bad, (1, 2), dtype=dtype)
        with pytest.warns(NonFiniteGradientWarning):
            norm = clip_on(route)(params, 1.0, p)
        assert [param.grad for param in params] == [None] * 3
        assert norm.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        assert str(norm.item()) == ("nan" if bad != bad else "inf")


@each_bad
@each_dtype
def test_keep(route, dtype, bad):
    for p, max_norm in itertools.product(NORMS, (1.0, 0.0, math.inf)):
        params = spoiled(bad, (0, 7), (2, 69), dtype=dtype)
        with Untouched(params):
            norm = clip_on(route, nonfinite="keep")(params, max_norm, p)
        assert str(norm.item()) == ("nan" if bad != bad else "inf")


def test_nan_wins_over_inf(route):
    for first, second in itertools.permutations(BAD.values(), 2):
        params = spoiled(first, (1, 0))
        params[2].grad[3] = second
        norm = clip_on(route, nonfinite="keep")(params, 1.0)
        assert str(norm.item()) == ("nan" if first != first or second != second else "inf")


@each_dtype
@each_bad
@pytest.mark.parametrize("p", NORMS)
def test_drop(route, dtype, bad, p):
    """The others are clipped by the norm of the others."""
    for part in (0.5, 2.0):
        drops(route, dtype, bad, p, part)


def drops(route, dtype, bad, p, part):
    places = [(0, 0), (0, 13), (1, 2), (2, 69)]
    params = spoiled(bad, *places, dtype=dtype)
    others = [without_bad(dense(param.grad)) for param in params]
    exact = exact_norm([torch.cat([kept for kept, _ in others])], p)
    limit = float(exact * part)
    with pytest.warns(NonFiniteGradientWarning):
        norm = clip_on(route, nonfinite="drop")(params, limit, p)
    ulps = 24 if dtype is torch.float64 else 1.0
    assert_norm(norm, exact, ulps)
    factor = min(mpmath.mpf(1), mpmath.mpf(limit) / exact)
    for param, (_, zeroed) in zip(params, others, strict=True):
        assert_close(param.grad, scaled(zeroed, factor), ulps)


def without_bad(gradient):
    """The finite elements, and the tensor with zeros in place of the others."""
    return gradient[gradient.isfinite()], gradient.nan_to_num(0, 0, 0)


def test_drop_of_everything(route):
    """Nothing is left: norm 0, and zeros."""
    params = parameters(torch.full((3,), math.nan), torch.full((2,), -math.inf))
    with pytest.warns(NonFiniteGradientWarning):
        assert clip_on(route, nonfinite="drop")(params, 1.0) == 0
    assert [param.grad.tolist() for param in params] == [[0.0] * 3, [0.0] * 2]


@each_dtype
@each_bad
def test_raise(route, dtype, bad):
    for options in ({"nonfinite": "raise"}, {"error_if_nonfinite": True}):
        params = spoiled(bad, (1, 1), dtype=dtype)
        with Untouched(params), pytest.raises(RuntimeError) as error:
            clip_on(route, **options)(params, 1.0)
        assert type(error.value) is NonFiniteGradientError
        assert [row.bad for row in error.value.report] == [0, 1, 0]


def test_error_if_nonfinite_wins_over_the_policy(route):
    for policy in POLICIES:
        params = spoiled(math.nan, (0, 0))
        with Untouched(params), pytest.raises(NonFiniteGradientError):
            clip_on(route, nonfinite=policy, error_if_nonfinite=True)(params, 1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_finite_gradients_are_nobodys_concern(route, policy):
    """No warning, whatever the policy, and not for a norm that saturates either."""
    params = parameters(torch.full((9,), torch.finfo(torch.float32).max), draw(3))
    norm = clip_on(route, nonfinite=policy)(params, 1.0)
    assert norm == torch.finfo(torch.float32).max
    assert exact_norm([param.grad for param in params]) == pytest.approx(1.0)


# every place at which a loop over vectors or chunks may be different
N = 40_003
PLACES = (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 8_191, 8_192, 16_383, 16_384, 16_385)
PLACES += (32_767, 32_768, N - 67, N - 33, N - 17, N - 16, N - 4, N - 3, N - 2, N - 1)


@each_dtype
@each_bad
def test_every_place(route, dtype, bad):
    """A bad element is seen wherever it lies, in whichever tensor."""
    rows = [draw(N if i == 1 else 3, dtype=dtype, seed=i) for i in range(3)]
    places = [(1, place) for place in (PLACES if route.name == "kernel" else PLACES[::9])]
    for where, place in [(0, 0), (0, 2), *places, (2, 1)]:
        rows[where][place], kept = bad, rows[where][place].item()
        report = report_on(route, parameters(*rows), nonfinite="keep")
        assert [row.bad for row in report] == [int(i == where) for i in range(3)]
        assert (report.total.nan, report.total.posinf, report.total.neginf) == counts([bad])
        rows[where][place] = kept


@each_dtype
@each_bad
@pytest.mark.parametrize("places", [PLACES, PLACES[:1], PLACES[-1:], range(N - 40, N)], ids=len)
def test_drop_at_every_place(route, dtype, bad, places):
    """Dropped alone: all other bits stay."""
    rows = [draw(N, dtype=dtype), draw(3)]
    rows[0][list(places)] = bad
    clean = rows[0].nan_to_num(0, 0, 0), rows[1].clone()
    with pytest.warns(NonFiniteGradientWarning):
        report = report_on(route, parameters(*rows), nonfinite="drop")
    assert report.total.bad == len(places)
    assert list(map(bits, rows)) == list(map(bits, clean))


def counts(values):
    """Of nan, +inf, -inf."""
    return tuple(sum(str(value) == name for value in values) for name in BAD)


def report_on(route, params, **options):
    with runs_on(route):
        return safeops.clip_report(params, 1e30, **options)


@each_dtype
def test_many_bad_elements(route, dtype):
    """Everywhere in a list of many sizes: counts by name, and a clip of the rest."""
    sizes = (1, 5, 16, 33, 100, 4_097, 16_385, 33_001)
    gradients = [draw(n, dtype=dtype, seed=n) for n in sizes]
    for i, gradient in enumerate(gradients):
        for step, bad in zip((3, 5, 11), BAD.values(), strict=True):
            gradient[i % 3 :: step + i] = bad
    expected = [counts(gradient.tolist()) for gradient in gradients]
    report = report_on(route, parameters(*gradients), nonfinite="keep")
    assert [(row.nan, row.posinf, row.neginf) for row in report] == expected
    assert report.total.bad == sum(map(sum, expected))


# --- a step after a skip -------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": lambda params, **form: torch.optim.SGD(params, 0.1, momentum=0.9, **form),
    "Adam": lambda params, **form: torch.optim.Adam(params, 0.1, weight_decay=0.1, **form),
    "AdamW": lambda params, **form: torch.optim.AdamW(params, 0.1, amsgrad=True, **form),
    "RMSprop": lambda params, **form: torch.optim.RMSprop(params, 0.1, momentum=0.9, **form),
    "Adagrad": lambda params, **form: torch.optim.Adagrad(params, 0.1, **form),
}
FORMS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
with_optimizers = pytest.mark.parametrize(
    ("optimizer", "form"),
    [pair for pair in itertools.product(OPTIMIZERS, FORMS) if pair != ("RMSprop", "fused")],
)


def state(params, optimizer):
    """Weights, moments and step counts, as they lie in memory."""
    moments = [optimizer.state.get(p, {}) for p in params]
    return [bits(p) for p in params], [
        {name: bits(torch.as_tensor(value)) for name, value in moment.items()} for moment in moments
    ]


def step(params, optimizer, seed, bad=0.0):
    """One step of training, with bad added to one element of one gradient."""
    optimizer.zero_grad()
    for param in params:
        param.grad = draw(*param.shape, seed=seed)
    params[1].grad[1] += bad
    safeops.clip_grad_norm_(params, 1.0)
    optimizer.step()


def trained(name, form, steps):
    params = [torch.nn.Parameter(draw(n, seed=n)) for n in (3, 5)]
    optimizer = OPTIMIZERS[name](params, **FORMS[form])
    for seed in range(steps):
        step(params, optimizer, seed)
    return params, optimizer


@with_optimizers
@pytest.mark.parametrize("good", [0, 2])
@each_bad
def test_a_step_after_a_skip_changes_nothing(optimizer, form, good, bad):
    """Not even as the first one; and the next good one is as if it had not been."""
    (params, ours), (others, theirs) = (trained(optimizer, form, good) for _ in range(2))
    before = state(params, ours)
    with pytest.warns(NonFiniteGradientWarning):
        step(params, ours, 7, bad)
    assert state(params, ours) == before == state(others, theirs)
    step(params, ours, 8)
    step(others, theirs, 8)
    assert state(params, ours) == state(others, theirs) != before
