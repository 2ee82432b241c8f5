"""monitor: its columns against float64, and what it shows of them."""

import json
import math
import sys

import pytest
import torch
from torch import nn

from safeops.diagnose.monitoring.monitor import Monitor, monitor
from tests.gradient_samples import draw
from tests.monitored import COLUMNS, assert_stats, by_layer, expected, net, train


class Fixed(nn.Module):
    """Gives a tensor, times a parameter of ones."""

    def __init__(self, values):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=values.dtype))
        self.values = values

    def forward(self, x):
        return self.values * self.scale


# --- what is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_columns(list_route, dtype):
    tiny = torch.finfo(dtype).tiny
    bad = [math.nan, math.inf, -math.inf, math.nan]
    values = torch.tensor([0.0, -0.0, tiny / 2, -tiny / 4, tiny, 3.0, -5.0, *bad], dtype=dtype)
    model = Fixed(values)
    with monitor(model) as m:
        out = model(None)
        out.backward(torch.full_like(out, 2.0))
    table = by_layer(m)
    assert_stats(table["Fixed", "activation"], values)
    assert_stats(table["Fixed", "gradient"], torch.full_like(values, 2.0))


@pytest.fixture(params=["kernel", "formulas"])
def list_route(request, monkeypatch):
    from safeops import _multi_tensor

    if request.param == "formulas":
        monkeypatch.setattr(_multi_tensor, "_kernels", lambda: None)
    elif _multi_tensor._kernels() is None:
        pytest.skip("no kernels")


def test_activations_and_gradients():
    """Of each layer: its output as it was made, though the next layer writes over it."""
    model, x = net(), draw(5, 4)
    with monitor(model) as m:
        train(model, x)
    first = model[0](x).detach().requires_grad_()
    second = first.clamp_min(0)
    third = model[2](second)
    gradients = torch.autograd.grad(third.pow(2).sum(), (first, second, third))
    table = by_layer(m)
    for place, (value, gradient) in enumerate(zip((first, second, third), gradients, strict=True)):
        assert table[str(place), "activation"].zeros == (value == 0).double().mean()
        for kind, tensor in (("activation", value), ("gradient", gradient)):
            assert table[str(place), kind].rms == pytest.approx(expected(tensor)["rms"], rel=1e-5)


def test_column_is_layers_by_steps():
    model = net()
    with monitor(model) as m:
        for size in (1.0, 10.0, math.nan):
            train(model, torch.full((2, 4), size))
    largest = m.column("largest")
    assert largest.shape == (3, 3)
    assert largest.dtype == torch.float64
    assert m.column("nan", "activation")[0].tolist() == [0, 0, 16]
    assert (m.column("nan", "gradient")[:, 2] > 0).all()
    assert [m.table(i)[0].largest for i in range(3)] == largest[0].tolist()


def test_a_shared_layer_is_one():
    """Its calls in a step are joined, and it has one name."""
    shared = nn.Linear(4, 4)
    model, x = nn.Sequential(shared, nn.Tanh(), shared), draw(5, 4)
    with monitor(model) as m:
        train(model, x)
    assert m.layers == ["0", "1"]
    outputs = shared(x), model(x)
    assert by_layer(m)["0", "activation"].rms == pytest.approx(expected(*outputs)["rms"], rel=1e-6)


def test_nested_outputs():
    class Two(nn.Module):
        def forward(self, x):
            return {"a": (x * 2, None), "b": [x * 3, x > 0]}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.two, self.first = Two(), nn.Linear(4, 4)

        def forward(self, x):
            out = self.two(self.first(x))
            return out["a"][0] + out["b"][0]

    model, x = Model(), draw(3, 4)
    with monitor(model) as m:
        train(model, x)
    y = model.first(x)
    assert_stats(by_layer(m)["two", "activation"], y * 2, y * 3)
    assert ("two", "gradient") in by_layer(m)


def test_attention_is_a_layer():
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    with monitor(model) as m:
        train(model, draw(2, 3, 8))
    assert "self_attn" in m.layers
    assert not any("out_proj" in name for name in m.layers)
    assert {stats.layer for stats in m.table()} == set(m.layers)


def test_complex_and_sparse_values():
    class Mixed(nn.Module):
        def forward(self, x):
            return torch.complex(x, x), x.to_sparse(), x.to(torch.int8)

    model = Mixed()
    with monitor(model) as m:
        model(torch.tensor([3.0, 0.0]))
    assert by_layer(m)["Mixed", "activation"].largest == pytest.approx(3 * math.sqrt(2))


def test_what_a_loss_scale_does():
    """Gradients are read as they are in the backward: scaled."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, x = net(inplace=False), draw(5, 4)
    with monitor(model) as m:
        model(x).sum().backward()
        scaler.scale(model(x).sum()).backward()
    plain, scaled = m.column("largest", "gradient")[2]
    assert scaled == 1024 * plain


def test_filter():
    with monitor(net(), filter_fn=lambda module, name: isinstance(module, nn.Linear)) as m:
        assert m.layers == ["0", "2"]
    assert isinstance(m, Monitor)


# --- what is shown -----------------------------------------------------------------------------


class Writer:
    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value


@pytest.fixture
def seen():
    model = net()
    with monitor(model) as m:
        train(model, steps=2)
        train(model, torch.full((2, 4), math.inf))
    return m


def test_tensorboard(seen):
    writer = Writer()
    seen.to_tensorboard(writer)
    assert len(writer.scalars) == 3 * 6 * len(COLUMNS)
    assert writer.scalars["monitor/gradient/rms/2", 1] == seen.column("rms", "gradient")[2, 1]
    last = Writer()
    seen.to_tensorboard(last, "run", last=1)
    assert {step for _, step in last.scalars} == {2}
    assert all(tag.startswith("run/") for tag, _ in last.scalars)
    with pytest.raises(TypeError, match=r"add_scalar.*int"):
        seen.to_tensorboard(3)
    assert "tensorboard" not in sys.modules


def test_report(seen, tmp_path):
    assert "not finite since step 2, in the activation of 0" in seen.summary()
    text = str(seen)
    assert all(name in text for name in ("layer", "headroom", "gradient"))
    plain = json.loads(json.dumps(seen.to_dict(), allow_nan=True))
    assert plain["steps"] == [0, 1, 2]
    assert plain["activation"]["inf"][0] == [0, 0, seen.table()[0].inf]
    seen.to_html(tmp_path / "monitor.html")
    page = (tmp_path / "monitor.html").read_text()
    assert page.count("<svg") == 2


def test_healthy_report():
    model = net()
    with monitor(model) as m:
        train(model)
    assert "all finite" in m.summary()
    nearest = min(stats.headroom for stats in m.table())
    assert f"{nearest:.1f} octaves" in m.summary()


@pytest.mark.parametrize("column", COLUMNS)
def test_plot(seen, column):
    axes = seen.plot(column, "gradient").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == seen.layers
    assert axes.get_images()[0].get_array().shape == (3, 3)
    crosses = axes.get_lines()[0]
    bad = (seen.column("nan", "gradient") + seen.column("inf", "gradient")) > 0
    assert len(crosses.get_xdata()) == bad.sum() > 0


def test_plot_of_nothing():
    m = monitor(net())
    m.close()
    assert m.plot().axes[0].get_images()[0].get_array().shape[0] == 3
    assert str(m) == m.summary()
    assert m.figures() == []


def test_unknown_columns():
    with monitor(net()) as m:
        pass
    with pytest.raises(ValueError, match=r"largest.*inf.*'mean'"):
        m.column("mean")
    with pytest.raises(ValueError, match=r"activation.*'weight'"):
        m.plot("rms", "weight")
    with pytest.raises(IndexError, match="0 kept steps"):
        m.table()
