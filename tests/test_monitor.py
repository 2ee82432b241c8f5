"""monitor: its columns against float64."""

import math

import pytest
import torch
from torch import nn

from safeops.diagnose.monitoring.monitor import Monitor, monitor
from tests.gradient_samples import draw
from tests.monitored import assert_stats, by_layer, expected, net, train


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
    assert [m.table(i)[0].largest for i in range(2)] == largest[0, :2].tolist()


def test_nothing_finite_has_no_magnitude():
    """Neither 0 nor endless room; zeros have both."""
    model = Fixed(torch.full((3,), math.nan))
    with monitor(model) as m:
        model(None)
        model.values = torch.zeros(3)
        model(None)
    for name, zero in (("largest", 0.0), ("rms", 0.0), ("headroom", math.inf)):
        nothing, of_zeros = m.column(name)[0].tolist()
        assert math.isnan(nothing)
        assert of_zeros == zero


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


def test_a_filter_that_is_no_function():
    for bad in ("0", 3, [nn.Linear]):
        with pytest.raises(TypeError, match=rf"filter_fn.*{type(bad).__name__}.*module, name"):
            monitor(net(), filter_fn=bad)
