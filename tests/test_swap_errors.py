"""What swap_ and unswap_ refuse leaves the model as it was."""

import pytest
from torch import nn
from torch.nn.utils import parametrize

import safeops
from tests.swap_samples import ZERO, Sick, classes

NO_MODULES = [(3, "int"), (Sick, "the class Sick"), (None, "NoneType"), ([Sick()], "list")]


@pytest.mark.parametrize(("model", "kind"), NO_MODULES, ids=lambda value: str(value)[:12])
def test_no_module(model, kind):
    for call in (safeops.swap_, safeops.unswap_):
        with pytest.raises(TypeError, match=f"expected a torch.nn.Module, got {kind}"):
            call(model)


def unchanged_after(error, text, **settings):
    model = Sick()
    before = [dict(vars(module)) for module in model.modules()]
    with pytest.raises(error, match=text):
        safeops.swap_(model, **settings)
    assert classes(model) == classes(Sick())
    assert [dict(vars(module)) for module in model.modules()] == before


def test_bad_settings_leave_the_model_as_it_was():
    def fails(module, name):
        if name:
            raise ZeroDivisionError("mine")
        return True

    unchanged_after(RuntimeError, "failed at module 'softmax'.*mine", filter_fn=fails)
    unchanged_after(TypeError, "filter_fn", filter_fn=3)
    unchanged_after(TypeError, "True or False", modules=["softmax"])
    unchanged_after(TypeError, "holds the settings", report="{}", options={"safe_log": {}})
    unchanged_after(ValueError, "takes none", options={"softplus": {}})
    unchanged_after(TypeError, "unexpected keyword", option={})
    unchanged_after(ValueError, "cannot be read", report="no json")
    unchanged_after(ValueError, "cannot be read", report={"changed": []})


def test_a_report_of_another_model_is_refused():
    report = safeops.swap_(nn.Sequential(nn.Softmax(-1)))
    unchanged_after(ValueError, "Sequential at '', where this model has tests", report=report)
    alone = safeops.swap_(nn.Sequential(nn.Softmax(-1)), functions=False)
    unchanged_after(ValueError, "Softmax at '0', where this model has nothing", report=alone)
    model = nn.Sequential(nn.Softmax(-1))
    safeops.swap_(model)
    with pytest.raises(ValueError, match=r"\(swapped\)"):
        safeops.swap_(model, report=report)


def test_a_failure_in_the_middle_leaves_all_as_it_was(monkeypatch):
    model = nn.Sequential(nn.Softmax(-1), nn.GELU())
    change = safeops.swap.modules.change

    def fails(module, entry, options):
        change(module, entry, options)
        if entry.name == "1":
            raise TypeError("no")

    monkeypatch.setattr(safeops.swap.modules, "change", fails)
    before = classes(model)
    with pytest.raises(RuntimeError, match="GELU at '1' cannot get another class"):
        safeops.swap_(model)
    assert classes(model) == before
    assert not any("_safeops_swap" in vars(module) for module in model.modules())


def test_swapped_does_not_undo_what_it_no_longer_knows():
    model = nn.Sequential(nn.LayerNorm(3))
    with pytest.raises(RuntimeError, match="undo that first"), safeops.swapped(model):
        parametrize.register_parametrization(model[0], "weight", nn.Softplus())
    assert model(ZERO).isfinite().all()


def test_a_class_that_changed_since_is_not_undone():
    model = nn.Sequential(nn.LayerNorm(3), nn.Softmax(-1))
    safeops.swap_(model)
    parametrize.register_parametrization(model[0], "weight", nn.Softplus())
    before = classes(model)
    with pytest.raises(RuntimeError, match="undo that first"):
        safeops.unswap_(model)
    assert classes(model) == before
    parametrize.remove_parametrizations(model[0], "weight")
    safeops.unswap_(model)
    assert type(model[0]) is nn.LayerNorm
