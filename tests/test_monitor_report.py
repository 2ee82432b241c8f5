"""What a monitor shows: report, heat map, TensorBoard."""

import json
import math
import sys

import pytest
import torch
from torch import nn

from safeops.diagnose.injection.inject import inject
from safeops.diagnose.monitoring.monitor import monitor
from tests.gradient_samples import draw
from tests.monitored import COLUMNS, net, train


class Writer:
    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step):
        assert (tag, step) not in self.scalars, "it was written before"
        self.scalars[tag, step] = value


@pytest.fixture
def seen():
    model = net()
    with monitor(model) as m:
        train(model, steps=2)
        train(model, torch.full((2, 4), math.inf))
    return m


def test_tensorboard(seen):
    writer, loaded = Writer(), "tensorboard" in sys.modules
    seen.to_tensorboard(writer)
    assert len(writer.scalars) == 3 * 6 * len(COLUMNS)
    assert writer.scalars["monitor/gradient/rms/2", 1] == seen.column("rms", "gradient")[2, 1]
    last = Writer()
    seen.to_tensorboard(last, "run", last=1)
    assert {step for _, step in last.scalars} == {2}
    assert all(tag.startswith("run/") for tag, _ in last.scalars)
    chosen = Writer()
    seen.to_tensorboard(chosen, columns="rms", kinds=["gradient"])
    assert {tag.rpartition("/")[0] for tag, _ in chosen.scalars} == {"monitor/gradient/rms"}
    assert len(chosen.scalars) == 3 * 3
    assert ("tensorboard" in sys.modules) == loaded


def test_tensorboard_goes_on_where_it_was():
    model, writer = net(), Writer()
    with monitor(model) as m:
        for step in range(3):
            loss = model(draw(5, 4)).sum()
            m.to_tensorboard(writer)
            assert ("monitor/gradient/rms/2", step) not in writer.scalars
            loss.backward()
            m.to_tensorboard(writer)
            assert ("monitor/gradient/rms/2", step) in writer.scalars
    assert len(writer.scalars) == 3 * 6 * len(COLUMNS)
    m.to_tensorboard(writer, "other")
    assert len(writer.scalars) == 2 * 3 * 6 * len(COLUMNS)
    again = Writer()
    m.to_tensorboard(again)
    assert len(again.scalars) == 3 * 6 * len(COLUMNS)


def test_tensorboard_errors(seen):
    with pytest.raises(TypeError, match=r"add_scalar.*int"):
        seen.to_tensorboard(3)
    for named, match in (
        ({"columns": ["rms", "mean"]}, r"column .*largest.*'mean'"),
        ({"kinds": "weight"}, r"kind .*activation.*'weight'"),
        ({"last": 0}, "last >= 1"),
    ):
        with pytest.raises(ValueError, match=match):
            seen.to_tensorboard(Writer(), **named)


def five_layers():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))


@pytest.mark.parametrize("layer", ["0", "3", "4"])
@pytest.mark.parametrize(("where", "kind"), [("backward", "gradient"), ("forward", "activation")])
def test_the_first_that_was_bad_is_named(layer, where, kind):
    """In the order of execution, which runs backward for gradients."""
    model = five_layers()
    with monitor(model) as m:
        train(model)
        with inject(model, layer, where=where, what="nan"):
            train(model)
        train(model)
    assert f"not finite, first in step 1, in the {kind} of {layer} (" in m.summary()


def test_execution_is_not_registration():
    class Reversed(nn.Sequential):
        def forward(self, x):
            for layer in reversed(self):
                x = layer(x)
            return x

    model = Reversed(*five_layers())
    with monitor(model) as m:
        train(model, torch.full((2, 4), math.nan))
    assert "in the activation of 4" in m.summary()


def test_the_table_is_of_the_first_bad_step():
    model = net(inplace=False)
    with monitor(model) as m:
        train(model)
        assert {row[0] for row in m.rows()} == {0}
        assert m.summary().startswith("1 step kept of 1, 3 layers: all finite")
        train(model, torch.full((2, 4), math.nan))
        train(model)
    assert m.columns()[0] == "step"
    assert {row[0] for row in m.rows()} == {1}
    first = dict(zip(m.columns(), m.rows()[0], strict=True))
    assert (first["largest"], first["rms"], first["headroom"], first["nan"]) == ("-", "-", "-", 16)
    model = nn.Linear(4, 2)
    with monitor(model) as m:
        train(model, steps=2)
    assert m.summary().startswith("2 steps kept of 2, 1 layer: all finite")


def test_a_closed_monitor_cannot_be_entered():
    with monitor(net()) as m:
        pass
    with pytest.raises(RuntimeError, match=r"closed.*call monitor\(model\) again"), m:
        pass


def test_report(seen, tmp_path):
    assert "not finite, first in step 2, in the activation of 0" in seen.summary()
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


def test_plot_tells_bad_from_zero_and_unread():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Identity() for _ in range(4))

        def forward(self, x):
            for layer, size in zip(self.layers, (1.0, 0.0, math.nan), strict=False):
                layer(x * size)

    model = Model()
    with monitor(model) as m:
        model(draw(5, 4))
    legend = ["NaN or Inf", "not read", "all zero", "nothing finite"]
    for column in ("largest", "rms", "headroom"):
        axes = m.plot(column).axes[0]
        values, marks = axes.get_images()
        assert values.get_array().mask[:, 0].tolist() == [False, True, True, True]
        assert marks.get_array().mask[:, 0].tolist() == [True, False, False, False]
        colours = {tuple(marks.to_rgba(code)) for code in marks.get_array()[1:, 0]}
        assert len(colours) == 3
        assert [text.get_text() for text in axes.get_legend().get_texts()] == legend
    assert m.plot("zeros").axes[0].get_images()[0].get_array()[1, 0] == 1


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
