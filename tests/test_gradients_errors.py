"""What a clip says: errors of wrong arguments, warnings and errors of bad gradients, reports."""

import json
import math
import re
from fractions import Fraction

import pytest
import torch

import safeops
from safeops import NonFiniteGradientError, NonFiniteGradientWarning
from tests.gradient_samples import Untouched, clip_on, draw, parameters, runs_on
from tests.test_gradients_report import assert_row, columns


def clip_value(params, limit, *args, **options):
    return safeops.clip_grad_value_(params, limit, **options)


CLIPS = {"norm": safeops.clip_grad_norm_, "report": safeops.clip_report, "value": clip_value}
each_clip = pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)


def fails(clip, error, match, params, *args, given=NotImplemented, **options):
    """The call, on params or what is given, fails so, and no gradient of params is changed."""
    given = params if given is NotImplemented else given
    with Untouched(params), pytest.raises(error, match=match) as seen:
        clip(given, *args, **options)
    assert type(seen.value) is error


def large():
    """Gradients that a clip would change."""
    return parameters(draw(5) * 100, draw(2, 3) * 100)


NO_PARAMETERS = {
    "string": (lambda params: "weight", "str"),
    "list of strings": (lambda params: [*params, "weight"], "str"),
    "list of numbers": (lambda params: [1.0, *params], "float"),
    "nothing": (lambda params: None, "NoneType"),
    "a None": (lambda params: [*params, None], "NoneType"),
    "parameter groups": (lambda params: torch.optim.SGD(params, 0.1).param_groups, "dict"),
    "pair without a tensor": (lambda params: [("a", params[0]), ("b", 1.0)], "float"),
    "triples": (lambda params: [("a", p, 1) for p in params], "pair"),
    "some pairs": (lambda params: [params[0], ("b", params[1])], "tuple|pair"),
    "pairs, then none": (lambda params: [("b", params[1]), params[0]], "Parameter|pair"),
}


@each_clip
@pytest.mark.parametrize("kind", NO_PARAMETERS)
def test_no_parameters(route, clip, kind):
    make, came = NO_PARAMETERS[kind]
    fails(clip, TypeError, came, params := large(), 1.0, given=make(params))


@each_clip
@pytest.mark.parametrize("bad", [None, "1", "big", 1j, [1.0], (1.0,), {}], ids=repr)
def test_limits_that_are_no_numbers(route, clip, bad):
    name = "clip_value" if clip is clip_value else "max_norm"
    fails(clip, TypeError, f"{name}.*{type(bad).__name__}", large(), bad)


@each_clip
@pytest.mark.parametrize("bad", [math.nan, -1, -1e-300, -math.inf, torch.tensor(math.nan)], ids=str)
def test_limits_out_of_range(route, clip, bad):
    name = "clip_value" if clip is clip_value else "max_norm"
    fails(clip, ValueError, name, large(), bad)


@pytest.mark.parametrize("clip", [CLIPS["norm"], CLIPS["report"]], ids=["norm", "report"])
def test_norm_types(route, clip):
    for bad in (None, [2], 1j, {}):
        fails(clip, TypeError, f"norm_type.*{type(bad).__name__}", large(), 1.0, bad)
    fails(clip, ValueError, "norm_type.*(?i:nan)", large(), 1.0, math.nan)
    with Untouched(params := large()), pytest.raises((TypeError, ValueError), match="norm_type"):
        clip(params, 1.0, "two")


@each_clip
@pytest.mark.parametrize("bad", ["ignore", "", "Skip", None, 1, True], ids=repr)
def test_policies(route, clip, bad):
    for params in (large(), parameters(torch.tensor([math.nan]))):
        fails(clip, ValueError, "skip.*drop.*keep.*raise", params, 1.0, nonfinite=bad)


@each_clip
def test_names_of_another_length(route, clip):
    for names in ([], ["a"], ["a", "b", "c"], "abc"):
        fails(clip, ValueError, rf"\b2\b.*\b{len(names)}\b", large(), 1.0, names=names)


@each_clip
def test_a_gradient_itself(route, clip):
    """A tensor that neither requires grad nor has one is no parameter."""
    params = large()
    gradients = [param.grad for param in params]
    for given in (gradients, gradients[0], [*params, gradients[0]], [("a", gradients[0])]):
        fails(clip, ValueError, "gradient", params, 1.0, given=given)
    assert torch.equal(gradients[0], draw(5) * 100)


@each_clip
def test_nothing_requires_grad(route, clip):
    frozen = [torch.nn.Parameter(torch.ones(2), requires_grad=False) for _ in range(2)]
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    for given in (frozen, frozen[0], model, model.named_parameters()):
        fails(clip, ValueError, "requires? grad|frozen", frozen, 1.0, given=given)


@each_clip
def test_numbers_of_any_kind(clip):
    """What float() makes a number of is one, and a limit of -0 is 0."""
    for limit in (1, 1.0, torch.tensor(1.0), torch.tensor([1]), Fraction(1)):
        clip(large(), limit)
    params = large()
    clip(params, -0.0)
    assert all((param.grad == 0).all() for param in params)


# --- bad gradients -------------------------------------------------------------------------------


def expectation(policy):
    """The context in which that policy runs on bad gradients."""
    if policy == "raise":
        return pytest.raises(NonFiniteGradientError)
    return pytest.warns(NonFiniteGradientWarning)


# name, gradient and what is said of it: counts and the first index
NAMED = (
    ("embed.weight", "nan nan 0 0 inf 0 inf inf", (4, 2), "2 nan, 3 inf", "[0, 0]"),
    ("body.bias", "1 2 3 4", (4,), "", ""),
    ("head.weight", "1 0 0 0 0 -inf 1 1", (2, 2, 2), "1 -inf", "[1, 0, 1]"),
    ("tail.weight", "1 2 nan nan", (2, 2), "2 nan", "[5, 0]"),
)


def named_parameters():
    """The last one is sparse, of rows 2 and 5."""
    for name, row, shape, *_ in NAMED:
        gradient = torch.tensor([float(x) for x in row.split()]).view(shape)
        if name == "tail.weight":
            gradient = torch.sparse_coo_tensor([[2, 5]], gradient, (7, 2), check_invariants=True)
        yield name, *parameters(gradient)


@pytest.mark.parametrize("policy", ["skip", "drop", "raise"])
def test_names_and_counts(route, policy):
    with expectation(policy) as seen:
        clip_on(route, nonfinite=policy)(named_parameters(), 1.0)
    message = str(seen.value if policy == "raise" else seen[0].message)
    for name, _, _, counts, index in NAMED:
        at = f"[^()]*{re.escape(index)}" if policy == "raise" else ""
        said = re.search(rf"{name} \({counts}{at}\)", message)
        assert bool(said) == bool(counts), f"{name} in {message}"


def test_the_same_name_twice(route):
    names, params = ["a", "a"], parameters(torch.tensor([0, math.nan]), torch.tensor([math.nan]))
    with pytest.raises(NonFiniteGradientError, match=r"a \(1 nan[^()]*\[1\]\), a \(.*\[0\]\)"):
        clip_on(route, nonfinite="raise", names=names)(params, 1.0)


@pytest.mark.parametrize("policy", ["skip", "drop"])
def test_a_warning_points_to_the_caller(policy):
    for call in CLIPS.values():
        params = parameters(torch.tensor([math.nan]))
        with pytest.warns(NonFiniteGradientWarning) as seen:
            call(params, 1.0, nonfinite=policy)
        assert [warning.filename for warning in seen] == [__file__], call.__name__


@pytest.mark.parametrize("given", ["list", "names", "module"])
def test_where_names_come_from(route, given):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    model[1].weight.grad[0, 1] = math.nan
    expected = {"list": r"parameters\[2\]", "names": "third", "module": r"1\.weight"}[given]
    names = ["first", "second", "third", "fourth"] if given == "names" else None
    params = model if given == "module" else list(model.parameters())
    with pytest.warns(NonFiniteGradientWarning, match=expected):
        clip_on(route, names=names)(params, 1.0)


@pytest.mark.parametrize("policy", ["skip", "drop", "raise"])
def test_at_most_ten_are_named(route, policy):
    params = parameters(*[torch.full((2,), math.nan) for _ in range(25)])
    with expectation(policy) as seen:
        clip_on(route, nonfinite=policy)(params, 1.0)
    message = str(seen.value if policy == "raise" else seen[0].message)
    named = [int(place) for place in re.findall(r"parameters\[(\d+)\]", message)]
    assert named == list(range(10))
    assert "and 15 more" in message


# --- reports -------------------------------------------------------------------------------------

# verdict: policy, limit, bad element, factor; the norm of the rest is 5
VERDICTS = {
    "ok": ("raise", 5.0, 0.0, 1.0),
    "clipped": ("skip", 2.5, 0.0, 0.5),
    "skipped": ("skip", 2.5, math.inf, 1.0),
    "kept": ("keep", 2.5, math.nan, 1.0),
    "dropped": ("drop", 2.5, -math.inf, 0.5),
}
each_verdict = pytest.mark.parametrize("verdict", VERDICTS)


def with_bad(bad):
    return parameters(torch.tensor([3.0, bad, 0.0]), torch.tensor([[4.0]]))


@pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")
@each_verdict
def test_report_of_a_clip(route, verdict):
    policy, limit, bad, factor = VERDICTS[verdict]
    with runs_on(route):
        report = safeops.clip_report(zip("ab", with_bad(bad), strict=True), limit, nonfinite=policy)
    facts = report.verdict, report.factor, report.clipped, report.max_norm, report.norm_type
    assert facts == (verdict, factor, factor < 1, limit, 2.0)
    for row, param in zip(report, with_bad(bad), strict=True):
        assert_row(row, columns(param.grad))
    assert [row.name for row in report] == ["a", "b"]
    assert report.finite == bool(report) == (bad == 0)
    assert verdict in str(report).splitlines()[0]
    assert {"verdict", "factor", "total_norm"} < set(json.loads(json.dumps(report.to_dict())))


@pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")
@each_verdict
def test_a_report_is_of_the_same_clip(route, verdict):
    policy, limit, bad, _ = VERDICTS[verdict]
    ours, theirs = with_bad(bad), with_bad(bad)
    report = safeops.clip_report(ours, limit, nonfinite=policy)
    norm = safeops.clip_grad_norm_(theirs, limit, nonfinite=policy)
    gradients = [[p.grad for p in params] for params in (ours, theirs)]
    assert str([report.total_norm, gradients[0]]) == str([norm, gradients[1]])


def test_kinds():
    report = safeops.clip_report([], 1.0, "inf")
    assert (report.verdict, report.norm_type, len(report), bool(report)) == ("ok", math.inf, 0, 1)
    assert isinstance(report, safeops.FiniteReport)
    assert issubclass(NonFiniteGradientWarning, RuntimeWarning)
