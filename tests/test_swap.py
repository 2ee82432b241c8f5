"""swap_, unswap_ and swapped: what changes, and what stays."""

import copy
import inspect
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, weight_norm

import safeops
from safeops.swap.classes import COUNTERPARTS
from tests.swap_samples import ZERO, Sick, classes


class Plain(nn.Module):
    def forward(self, x):
        return x


def test_in_place_and_reported():
    model = Sick()
    report = safeops.swap_(model)
    assert model(ZERO).isfinite().all()
    assert [(e.name, e.was, e.now) for e in report.replaced] == [
        ("softmax", "torch.nn.Softmax", "safeops.nn.Softmax")
    ]
    assert [entry.name for entry in report.forwards] == [""]
    assert report.functions["torch.Tensor.log"] == "safeops.safe_log"
    assert isinstance(model, Sick)
    assert isinstance(model.softmax, nn.Softmax)
    assert model.note == "mine"
    assert inspect.signature(model.forward) == inspect.signature(Sick().forward)
    assert safeops.unswap_(model) == ("", "softmax")
    assert not model(ZERO).isfinite().any()


def test_modules_alone():
    model = Sick()
    report = safeops.swap_(model, functions=False)
    assert type(model) is Sick
    assert type(model.softmax) is safeops.nn.Softmax
    assert [(e.name, e.why) for e in report.left] == [
        ("", "functions=False, and its forward is Python code")
    ]
    assert report.functions == {}


def test_functions_alone():
    model = Sick()
    report = safeops.swap_(model, modules=False)
    assert type(model.softmax) is nn.Softmax
    assert not report.replaced
    assert model(ZERO).isfinite().all()


@pytest.mark.parametrize("name", safeops.nn.MODULES)
def test_every_module_has_its_torch_name_and_place(name):
    ours, theirs = getattr(safeops.nn, name), getattr(nn, name)
    assert COUNTERPARTS[theirs] is ours
    assert issubclass(ours, theirs)
    assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    assert inspect.signature(ours) == inspect.signature(theirs)


def test_a_root_of_torch_and_a_root_without_forward():
    root = nn.Softmax(-1)
    safeops.swap_(root)
    assert type(root) is safeops.nn.Softmax
    children = nn.ModuleDict({"a": Sick(), "b": nn.ModuleList([Sick()])})
    report = safeops.swap_(children)
    assert [entry.name for entry in report.forwards] == ["a", "b.0"]
    assert children["a"](ZERO).isfinite().all()


def test_children_are_safe_when_called_alone():
    """As gradient checkpointing calls them in backward."""
    model = nn.Sequential(Sick(), Plain())
    safeops.swap_(model)
    assert model[0](ZERO).isfinite().all()


def test_shared_modules_once():
    shared = nn.LayerNorm(3)
    model = nn.ModuleList([shared, nn.Sequential(shared)])
    report = safeops.swap_(model)
    assert [entry.name for entry in report.replaced] == ["0"]
    assert model[0] is shared
    assert model[1][0] is shared


def test_what_is_kept():
    model = Sick().double().eval()
    model.linear.weight.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(()))
    model.softmax.own = object()
    calls = []
    model.softmax.register_forward_hook(lambda *a: calls.append("softmax"))
    model.register_forward_pre_hook(lambda *a: calls.append("model"))
    parameters = dict(model.named_parameters())
    own, keys = model.softmax.own, list(model.state_dict())
    safeops.swap_(model)
    model(ZERO.double())
    assert calls == ["model", "softmax"]
    assert model.softmax.own is own
    assert not model.training
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert list(model.state_dict()) == keys
    assert not model.linear.weight.requires_grad


def test_weight_norm_and_parametrizations():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 3)),
        parametrizations.spectral_norm(nn.Linear(3, 3)),
        nn.LayerNorm(3),
    )
    parametrize.register_parametrization(model[2], "weight", nn.Softplus())
    with pytest.warns(FutureWarning):
        model.append(weight_norm(nn.Linear(3, 3)))
    model.eval()
    expected, before = model(ZERO), classes(model)
    report = safeops.swap_(model)
    assert ("2", "torch.nn.utils.parametrize.ParametrizedLayerNorm") in [
        (e.name, e.was) for e in report.left
    ]
    assert torch.equal(model(ZERO), expected)
    parametrize.remove_parametrizations(model[2], "weight")
    safeops.unswap_(model)
    assert classes(model)[3:5] == before[3:5]


def test_dry_run_changes_nothing():
    model = Sick()
    report = safeops.swap_(model, dry_run=True)
    assert len(report.changed) == 2
    assert classes(model) == classes(Sick())
    assert not [key for module in model.modules() for key in vars(module) if "safeops" in key]


def test_filter():
    model = Sick()
    asked = []

    def all_but_softmax(module, name):
        asked.append(name)
        return not isinstance(module, nn.Softmax)

    report = safeops.swap_(model, filter_fn=all_but_softmax)
    assert asked == ["", "softmax"]
    (left,) = report.left
    assert left.name == "softmax"
    assert left.why.startswith("filter_fn left it out")
    assert type(model.softmax) is nn.Softmax


def test_options_reach_the_ops():
    model = Sick()
    safeops.swap_(model, options={"safe_div": {"fill": 5.0}})
    assert (model(ZERO) == 5.0).all()
    assert (copy.deepcopy(model)(ZERO) == 5.0).all()


def test_swapped_is_for_a_block():
    model = Sick()
    with safeops.swapped(model, modules=False) as report:
        assert [entry.name for entry in report.changed] == [""]
        assert model(ZERO).isfinite().all()
    assert classes(model) == classes(Sick())
    with pytest.raises(KeyError), safeops.swapped(model):
        raise KeyError
    assert classes(model) == classes(Sick())


def test_swapped_leaves_what_was_swapped_before():
    model = nn.Sequential(Sick(), nn.Softmax(-1))
    safeops.swap_(model[0])
    with safeops.swapped(model):
        assert type(model[1]) is safeops.nn.Softmax
    assert type(model[1]) is nn.Softmax
    assert model[0](ZERO).isfinite().all()


def test_a_second_swap_is_a_no_op_that_says_so():
    model = Sick()
    safeops.swap_(model)
    before = classes(model)
    report = safeops.swap_(model)
    assert "nothing was changed" in str(report)
    assert all("already swapped" in entry.why for entry in report.left)
    assert classes(model) == before
    safeops.unswap_(model)
    assert classes(model) == classes(Sick())


def test_undoing_nothing_says_so():
    with pytest.warns(UserWarning, match="not swapped"):
        assert safeops.unswap_(Sick()) == ()


def test_another_one_of_a_swapped_class_works_and_can_be_undone():
    model = Sick()
    safeops.swap_(model)
    other = type(model)()
    assert not other(ZERO).isnan().any()
    assert safeops.unswap_(other) == ("",)
    assert type(other) is Sick


def test_modules_of_the_user_stay_his():
    """Those of safeops.nn that he chose are no swap."""
    model = nn.Sequential(safeops.nn.LayerNorm(3), nn.LayerNorm(3))
    safeops.swap_(model)
    safeops.unswap_(model)
    assert classes(model)[1:] == [safeops.nn.LayerNorm, nn.LayerNorm]


def test_an_outer_safe_mode_has_no_say_in_a_swapped_model():
    model = Sick()
    safeops.swap_(model)
    with safeops.safe_mode({"safe_div": {"fill": 9.0}, "safe_log2": {"fill": 9.0}}):
        assert not (model(ZERO) == 9.0).any()


def test_a_bad_batch_does_not_reach_the_running_statistics():
    for norm, shape in ((nn.BatchNorm1d(2), (4, 2)), (nn.BatchNorm2d(2), (4, 2, 3, 3))):
        safeops.swap_(norm)
        norm(torch.randn(shape))
        before = {key: value.clone() for key, value in norm.state_dict().items()}
        bad = torch.randn(shape)
        bad[0, 0] = math.nan
        assert not norm(bad).isfinite().all()
        assert all(torch.equal(value, before[key]) for key, value in norm.state_dict().items())
        norm(torch.randn(shape))
        assert norm.num_batches_tracked == 2


def test_hooks_see_an_error_inside():
    """And safe_mode is over after it."""

    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError("inside")

    model = Fails()
    safeops.swap_(model)
    with pytest.raises(KeyError, match="inside"):
        model(ZERO)
    assert torch.zeros(1).log().item() == -math.inf
