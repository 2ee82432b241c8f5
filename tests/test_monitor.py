"""monitor: its columns against float64, what counts as a step, and a model that is left alone."""

import copy
import io
import json
import math
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks import monitor as benchmark
from safeops.diagnose.monitoring.hooks import _nothing
from safeops.diagnose.monitoring.monitor import Monitor, monitor
from tests.gradient_samples import draw

COLUMNS = ("largest", "rms", "zeros", "subnormal", "headroom", "nan", "inf")


def net(inplace=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.Linear(8, 2))


def train(model, *given, steps=1):
    for _ in range(steps):
        out = model(*(given or (draw(5, 4),)))
        out.pow(2).sum().backward()


def expected(*tensors):
    """A line of the table, from float64."""
    x = torch.cat([t.detach().double().flatten() for t in tensors])
    good = x[x.isfinite()]
    info = torch.finfo(tensors[0].dtype)
    small = (good != 0) & (good.abs() < info.tiny)
    largest = good.abs().max().item()
    return {
        "largest": largest,
        "rms": good.pow(2).mean().sqrt().item(),
        "zeros": (x == 0).double().mean().item(),
        "subnormal": small.sum().item() / len(x),
        "headroom": math.log2(info.max) - math.log2(largest),
        "nan": int(x.isnan().sum()),
        "inf": int(x.isinf().sum()),
    }


def assert_stats(stats, *tensors):
    wanted = expected(*tensors)
    assert {name: getattr(stats, name) for name in COLUMNS} == pytest.approx(wanted, rel=1e-12)
    assert stats.bad == wanted["nan"] + wanted["inf"]


def by_layer(m, step=-1):
    return {(stats.layer, stats.kind): stats for stats in m.table(step)}


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


# --- what a step is ----------------------------------------------------------------------------


def test_only_training_counts():
    model = net()
    with monitor(model) as m, monitor(model, evaluation=True) as everything:
        model.eval()(draw(2, 4))
        with torch.no_grad():
            model.train()(draw(2, 4))
        with torch.inference_mode():
            model(draw(2, 4))
        train(model)
    assert (m.seen, everything.seen) == (1, 4)
    assert all(len(everything.table(step)) == 3 for step in range(3))


def test_accumulated_gradients():
    """Several forwards before a backward are steps, each with its own gradients."""
    model = net()
    with monitor(model) as m:
        losses = [size * model(draw(5, 4)).sum() for size in (1.0, 100.0)]
        sum(losses).backward()
    first, second = m.column("largest", "gradient")[2]
    assert second == pytest.approx(100 * first)


def test_every_and_history():
    model = net()
    with monitor(model, every=3, history=2) as m:
        train(model, steps=10)
    assert (m.seen, m.steps) == (10, [6, 9])
    assert m.column("rms").shape == (3, 2)


def test_no_hook_on_layers_between():
    """Between observed steps nothing but the model itself is hooked."""
    model, seen = net(), []
    model[0].register_forward_hook(lambda *_: seen.append(len(model[2]._forward_hooks)))
    with monitor(model, every=2):
        train(model, steps=3)
    assert seen == [1, 0, 1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    """What it repeats does not count."""

    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = net(inplace=False), 0

        def forward(self, x):
            self.calls += 1
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model, x = Saving(), draw(5, 4).requires_grad_()
    with monitor(model) as m, monitor(model.inner) as within:
        train(model, x, steps=2)
    assert m.seen == 2
    assert within.seen == (0 if reentrant else 2)
    assert_stats(by_layer(m)["inner.0", "activation"], model.inner[0](x))
    assert (("inner.0", "gradient") in by_layer(m)) is not reentrant


@pytest.mark.parametrize("how", ["wrapped", "method", "layer"])
def test_compiled(how):
    model = net(inplace=False)
    called = model
    if how == "wrapped":
        called = torch.compile(model, backend="eager")
    elif how == "method":
        model.compile(backend="eager")
    else:
        model[0] = torch.compile(model[0], backend="eager")
    train(called)
    with monitor(called, every=2) as m, monitor(called) as other:
        train(called, steps=3)
    train(called)
    assert (m.layers, m.steps, other.steps) == (["0", "1", "2"], [0, 2], [0, 1, 2])
    assert all(len(m.table(step)) == 6 for step in range(2))
    assert torch.compiler.is_compiling() is False


def test_inside_of_a_compiled_function():
    """It is not seen, and does not break."""
    model = net(inplace=False)
    with monitor(model) as m:
        step = torch.compile(lambda x: model(x).sum(), backend="eager")
        step(draw(2, 4)).backward()
    assert m.steps == []
    assert "no step seen" in m.summary()


def test_transforms_are_passed_over():
    model = net(inplace=False)
    parameters = dict(model.named_parameters())
    with monitor(model) as m:
        loss = lambda p: torch.func.functional_call(model, p, (draw(2, 4),)).sum()  # noqa: E731
        torch.func.grad(loss)(parameters)
        torch.vmap(model)(draw(3, 2, 4))
    assert m.seen == 0


def test_autocast():
    model = net(inplace=False)
    with monitor(model) as m, torch.autocast("cpu", torch.bfloat16):
        train(model)
    stats = by_layer(m)["0", "activation"]
    assert stats.headroom == math.log2(torch.finfo(torch.bfloat16).max) - math.log2(stats.largest)


def test_an_exception_in_forward():
    class Fails(nn.Module):
        def forward(self, x):
            raise ArithmeticError("on purpose")

    model = nn.Sequential(nn.Linear(4, 4), Fails())
    with monitor(model) as m:
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="on purpose"):
                model(draw(2, 4))
        assert hooks(model[0]) == 0
    assert m.steps == [0, 1]
    assert [stats.layer for stats in m.table()] == ["0"]


# --- the model is left alone -------------------------------------------------------------------


def hooks(model):
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, name)) for module in model.modules() for name in names)


def test_the_same_numbers():
    plain, watched = net(), net()
    with monitor(watched):
        train(watched, steps=2)
    train(plain, steps=2)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_closed():
    model, x = nn.Sequential(nn.Identity(), nn.Linear(4, 2)), draw(2, 4).requires_grad_()
    m = monitor(model)
    train(model, x, steps=2)
    m.close()
    m.close()
    assert hooks(model) == 0
    assert not x._backward_hooks
    train(model, x)
    assert m.steps == [0, 1]
    assert by_layer(m)["0", "gradient"].rms > 0


def test_two_monitors_close_in_any_order():
    for first in (0, 1):
        model = net()
        model.compile(backend="eager")
        both = [monitor(model), monitor(model, every=2)]
        train(model)
        both[first].close()
        train(model)
        both[1 - first].close()
        train(model)
        assert [len(m.steps) for m in both] == [1 + first, 1]
        assert hooks(model) == 0


def test_a_copy_is_not_watched():
    model = net()
    with monitor(model) as m:
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for one in (*copies, torch.load(file, weights_only=False)):
            train(one)
            assert set(one._forward_pre_hooks.values()) == {_nothing}
            assert set(one._forward_hooks.values()) == {_nothing}
        assert m.seen == 0
        train(model)
        assert m.seen == 1


def test_no_tensor_is_kept():
    """Once the step is over, nothing of it is alive."""
    import weakref

    model, seen = net(inplace=False), []
    model[0].register_forward_hook(lambda _, __, out: seen.append(weakref.ref(out)))
    with monitor(model):
        train(model)
        assert seen[0]() is None


def test_distributed(tmp_path):
    """DDP's own hooks and the monitor's are on the same module."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(net())
        with monitor(model) as m, monitor(model.module) as inner:
            train(model, steps=2)
    finally:
        dist.destroy_process_group()
    assert (m.steps, inner.steps) == ([0, 1], [0, 1])
    assert len(m.table()) == len(inner.table()) == 6


def test_what_a_loss_scale_does():
    """Gradients are read as they are in the backward: scaled."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, x = net(inplace=False), draw(5, 4)
    with monitor(model) as m:
        model(x).sum().backward()
        scaler.scale(model(x).sum()).backward()
    plain, scaled = m.column("largest", "gradient")[2]
    assert scaled == 1024 * plain


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


# --- bad input ---------------------------------------------------------------------------------


def test_errors():
    for model in (3, None, lambda x: x):
        with pytest.raises(TypeError, match=r"torch\.nn\.Module.*" + type(model).__name__):
            monitor(model)
    model = net()
    for name in ("every", "history"):
        for bad in (0, -1):
            with pytest.raises(ValueError, match=rf"{name} >= 1.*{bad}"):
                monitor(model, **{name: bad})
        for bad in (1.5, True, "2", None):
            with pytest.raises(TypeError, match=rf"integer as {name}.*{type(bad).__name__}"):
                monitor(model, **{name: bad})
    with pytest.raises(ValueError, match="filter_fn"):
        monitor(model, filter_fn=lambda module, name: False)
    with pytest.raises(ValueError, match="no module without children"):
        monitor(nn.ModuleList())
    assert hooks(model) == 0


def test_unknown_columns():
    with monitor(net()) as m:
        pass
    with pytest.raises(ValueError, match=r"largest.*inf.*'mean'"):
        m.column("mean")
    with pytest.raises(ValueError, match=r"activation.*'weight'"):
        m.plot("rms", "weight")
    with pytest.raises(IndexError, match="0 kept steps"):
        m.table()


def test_filter():
    with monitor(net(), filter_fn=lambda module, name: isinstance(module, nn.Linear)) as m:
        assert m.layers == ["0", "2"]
    assert isinstance(m, Monitor)


def test_benchmark(monkeypatch, capsys):
    sizes = {"LAYERS": 1, "WIDTH": 8, "HEADS": 2, "VOCABULARY": 11, "BATCH": 2, "TOKENS": 3}
    for name, size in sizes.items():
        monkeypatch.setattr(benchmark, name, size)
    threads = torch.get_num_threads()
    benchmark.main(["--steps", "2", "--threads", str(threads)])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{threads} threads, every  1",
        f"{threads} threads, every 10",
    ]
