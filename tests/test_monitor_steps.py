"""What a monitor takes for a step: of training, of checkpoints, compiled, in transforms."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from safeops.diagnose.monitoring.monitor import monitor
from tests.gradient_samples import draw
from tests.monitored import assert_stats, by_layer, hooks, net, train


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
