"""Tensors and models of odd kinds: read or left, never an exception."""

from collections import UserDict, namedtuple

import pytest
import torch
from torch import nn

from safeops.diagnose.auditing.audit import audit


def module(**parameters):
    model = nn.Module()
    model.trained = nn.Parameter(torch.ones(2))
    for name, value in parameters.items():
        model.register_parameter(name, nn.Parameter(value, value.is_floating_point()))
    return model


def quantized():
    return torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


READ = {
    "complex": lambda: torch.randn(4, 4, dtype=torch.complex64),
    "double": lambda: torch.randn(4, 4, dtype=torch.float64),
    "coo": lambda: torch.eye(4).to_sparse(),
    "float8": lambda: torch.randn(4, 4).to(torch.float8_e4m3fn),
    "expanded": lambda: torch.randn(1, 4).expand(4, 4),
    "empty": lambda: torch.zeros(0, 4),
    "scalar": lambda: torch.tensor(1.0),
    "integers": lambda: torch.arange(4),
    "meta": lambda: torch.zeros(4, 4, device="meta"),
    "quantized": quantized,
    "nested": nested,
}


@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning", "ignore:.*deprecat")
@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("place", ["parameter", "buffer", "batch"])
def test_odd_tensors(kind, place):
    model, value = nn.Sequential(nn.Identity()), READ[kind]()
    model.trained = nn.Parameter(torch.ones(2))
    if place == "parameter":
        model.odd = nn.Parameter(value, requires_grad=False)
    elif place == "buffer":
        model.register_buffer("odd", value)
    report = audit(model, batch={"odd": value, "input": torch.zeros(2)})
    whats = {one.what for one in report.findings}
    assert whats <= {"no data"}
    assert ("no data" in whats) == (kind == "meta" and place != "batch")
    if kind in ("quantized", "nested", "meta") and place != "batch":
        assert report.unread == {"odd": kind}
        assert "1 not read" in report.summary()


@pytest.mark.parametrize("kind", ["complex", "double", "coo", "expanded", "scalar"])
def test_a_nan_in_an_odd_tensor_is_found(kind):
    value = READ[kind]() * float("nan")
    model = module(odd=value)
    assert [(one.what, one.where) for one in audit(model).findings] == [("nan", "odd")]


def test_no_parameters():
    assert audit(nn.ReLU()).summary() == "audit: nothing found (0 tensors read)"
    assert audit(nn.Sequential(), batch=torch.randn(3)).findings == []


def test_tied_weights_are_judged_once_as_the_embedding():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.words = nn.Linear(64, 50, bias=False), nn.Embedding(50, 64)
            self.head.weight = self.words.weight

    (gain,) = audit(Tied()).gains
    assert gain.name == "head.weight"
    assert gain.gain == pytest.approx(1.0, abs=0.1)


def test_a_lazy_model_is_not_run():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    (finding,) = audit(model, batch=torch.randn(8, 5)).findings
    assert finding.what == "uninitialised"
    assert isinstance(model[0], nn.LazyLinear)


def test_dtensors():
    from torch.distributed.tensor import DeviceMesh, Replicate, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = DeviceMesh("cpu", [0, 1])
        model = nn.Linear(64, 64)
        weight = distribute_tensor(model.weight.detach() * 50, mesh, [Replicate()])
        model.weight = nn.Parameter(weight)
        assert [one.what for one in audit(model).findings] == ["weights too large"]
    finally:
        torch.distributed.destroy_process_group()


Pair = namedtuple("Pair", "x y")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return {"logits": self.layer(x), "extra": None}


BAD = torch.tensor([0, 1, 2, 7])
GOOD = torch.tensor([0, 1, 2, -100])


@pytest.mark.parametrize(
    ("batch", "where"),
    [
        (lambda x, y: (x, y), "batch[1]"),
        (lambda x, y: [x, [y]], "batch[1][0]"),
        (lambda x, y: Pair(x, y), "batch.y"),
        (lambda x, y: {"x": x, "labels": y}, "batch['labels']"),
        (lambda x, y: UserDict(x=x, labels=y), "batch['labels']"),
        (lambda x, y: (x, {"deep": (y,)}), "batch[1]['deep'][0]"),
    ],
)
def test_targets_in_any_structure(batch, where):
    x = torch.randn(4, 4)
    assert audit(Plain(), batch=batch(x, GOOD)).findings == []
    (finding,) = audit(Plain(), batch=batch(x, BAD)).findings
    assert (finding.what, finding.where, finding.amount) == ("class index", where, 7)


def test_targets_of_images_and_of_language():
    class Scores(nn.Module):
        def forward(self, x):
            return x

    for shape, wanted in ((4, 3, 5, 5), (4, 5, 5)), ((4, 6, 3), (4, 6)):
        x = torch.randn(shape)
        assert audit(Scores(), batch=(x, torch.full(wanted, 2))).findings == []
        (finding,) = audit(Scores(), batch=(x, torch.full(wanted, 3))).findings
        assert finding.what == "class index"


@pytest.mark.parametrize("batch", [3, "text", [], {}, object(), [None], {1: torch.ones(3)}])
def test_batches_that_the_model_cannot_take_are_a_finding(batch):
    (finding,) = audit(Plain(), batch=batch).findings
    assert finding.what == "forward failed"
    assert finding.severity == "error"
    assert "Error" in finding.how_bad


def test_numpy_arrays_that_a_model_takes_are_its_own_matter():
    class Converting(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x)

    array = torch.randn(8, 4).numpy()
    assert audit(Converting(), batch=array).findings == []
    (finding,) = audit(Plain(), batch={"x": array}).findings
    assert (finding.what, finding.where) == ("not a tensor", "batch['x']")
    assert finding.remedy == "convert with torch.from_numpy(array).float()"
    assert "TypeError" in finding.how_bad
    failing = audit(Plain(), batch=array, forward=lambda model, batch: model(batch))
    assert [one.what for one in failing.findings] == ["forward failed"]


def test_a_model_without_a_forward():
    (finding,) = audit(nn.Module(), batch=torch.ones(3)).findings
    assert "forward" in finding.how_bad


def test_scripted_models():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert audit(model, batch=torch.randn(8, 4)).findings == []


def test_data_parallel_wrappers_take_the_batch_as_the_model():
    model = nn.DataParallel(Plain())
    (finding,) = audit(model, batch=(torch.randn(4, 4), BAD)).findings
    assert finding.what == "class index"


def test_optimizers_with_integer_parameters():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["params"].append(torch.zeros(3, dtype=torch.long))
    assert [one.what for one in audit(model, optimizer).findings] == ["not in the model"]
