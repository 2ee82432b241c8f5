"""safe_mode: where it holds, and in which company."""

import math
import threading

import pytest
import torch
from torch.nn import functional as F

import safeops
from safeops.swap import calls, functions
from tests.samples import label


def test_it_holds_for_its_thread_alone():
    found = []
    with safeops.safe_mode():
        thread = threading.Thread(target=lambda: found.append(torch.zeros(1).log().item()))
        thread.start()
        thread.join()
    assert found == [-math.inf]


def test_it_ends_with_the_block_even_on_an_error():
    with pytest.raises(KeyError), safeops.safe_mode():
        raise KeyError
    assert torch.zeros(1).log().item() == -math.inf


def test_entered_twice_it_works_once():
    with safeops.safe_mode():
        before = len(safeops._route.function_modes())
        with safeops.safe_mode():
            assert len(safeops._route.function_modes()) == before
            assert torch.zeros(1).log().isfinite()
        assert torch.zeros(1).log().isfinite()


def test_contexts_made_before_they_are_entered():
    inner = safeops.safe_mode()
    with safeops.safe_mode(), inner:
        assert torch.zeros(1).log().isfinite()
    with inner, inner:
        assert torch.zeros(1).log().isfinite()
    with inner:
        assert torch.zeros(1).log().isfinite()
    assert torch.zeros(1).log().item() == -math.inf


def test_as_a_decorator():
    @safeops.safe_mode({"safe_log": {"fill": 3.0}})
    def log(x):
        """Mine."""
        return x.log()

    assert log(torch.zeros(1)).item() == 3.0
    assert log.__doc__ == "Mine."
    with pytest.raises(TypeError, match="with parentheses"):
        safeops.safe_mode(log)


def test_options():
    x = torch.zeros(1)
    with safeops.safe_mode({"safe_log": {"eps": 1e-3}, "safe_div": {"fill": 7.0}}):
        assert x.log().item() == pytest.approx(math.log(1e-3))
        assert (x / x).item() == 7.0
        assert (1 / x).item() == 7.0
        with safeops.safe_mode({"safe_log": {"fill": -2.0}}):
            assert x.log().item() == -2.0
        assert x.log().item() == pytest.approx(math.log(1e-3))


BAD_OPTIONS = [
    ({"log": {"eps": 1.0}}, ValueError, "safe_log"),
    ({"softmax": {}}, ValueError, "takes none"),
    ({"safe_log": {"epsilon": 1.0}}, ValueError, "eps, fill, extend"),
    ({"safe_log": {"eps": -1.0}}, ValueError, "must be positive"),
    ({"safe_log": {"eps": "small"}}, TypeError, "eps"),
    ({"safe_log": 1e-3}, ValueError, "eps, fill, extend"),
    ([("safe_log", {})], TypeError, "expected a dict"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD_OPTIONS)
def test_bad_options(options, error, text):
    with pytest.raises(error, match=text):
        safeops.safe_mode(options)


def test_with_a_default_device():
    """Which is a TorchFunctionMode, too."""
    with torch.device("meta"), safeops.safe_mode():
        assert torch.ones(2).log().device.type == "meta"


def test_a_subclass_of_tensor_keeps_its_say():
    calls = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    x = torch.zeros(2).as_subclass(Loud)
    with safeops.safe_mode():
        assert x.log().isfinite().all()
    assert calls


class Gpu(torch.Tensor):
    """Says that it is on a GPU, under autocast."""

    is_cpu = False


def test_what_autocast_widens_on_a_gpu(monkeypatch):
    x = torch.ones(2, dtype=torch.float16).as_subclass(Gpu)
    assert calls._widened(x).dtype is torch.float16
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    assert calls._widened(x).dtype is torch.float32
    assert calls._widened(x.double()).dtype is torch.float64
    assert calls._widened(2.0) == 2.0
    assert isinstance(functions.table_for(None)[torch.log], calls.Wide)
    assert not isinstance(functions.table_for(None)[torch.sqrt], calls.Wide)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=label)
def test_under_autocast_dtypes_are_torchs(dtype):
    layer = torch.nn.Linear(4, 4)

    def run():
        with torch.autocast("cpu", dtype):
            y = layer(torch.ones(2, 4))
            norm = F.layer_norm(y, (4,), torch.ones(4), torch.zeros(4))
            loss = F.cross_entropy(y, torch.tensor([0, 1]))
            attention = F.scaled_dot_product_attention(y[None], y[None], y[None])
            return y.softmax(-1), y.log_softmax(-1), y.exp(), y.norm(), norm, loss, attention, y / y

    expected = run()
    with safeops.safe_mode():
        found = run()
    assert [t.dtype for t in found] == [t.dtype for t in expected]
