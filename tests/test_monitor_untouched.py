"""A model that is or was monitored is left alone: numbers, hooks, copies, memory, its wrappers."""

import copy
import io
import pickle
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from safeops.diagnose.monitoring.hooks import _nothing
from safeops.diagnose.monitoring.monitor import monitor
from tests.gradient_samples import draw
from tests.monitored import by_layer, hooks, net, train


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
    model, seen = net(inplace=False), []
    model[0].register_forward_hook(lambda _, __, out: seen.append(weakref.ref(out)))
    with monitor(model):
        train(model)
        assert seen[0]() is None


def test_distributed(tmp_path):
    """DDP's own hooks and the monitor's are on the same module."""
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
            with pytest.raises(TypeError, match=rf"whole number for {name}.*{type(bad).__name__}"):
                monitor(model, **{name: bad})
    with pytest.raises(ValueError, match="filter_fn"):
        monitor(model, filter_fn=lambda module, name: False)
    with pytest.raises(ValueError, match="no module without children"):
        monitor(nn.ModuleList())
    assert hooks(model) == 0
