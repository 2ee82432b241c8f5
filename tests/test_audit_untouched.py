"""An audit changes nothing: state, gradients, flags, hooks and random numbers are as before."""

import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack

from safeops.diagnose.auditing.audit import audit


class Busy(nn.Module):
    """A forward that changes whatever a forward can."""

    def __init__(self, fails=False):
        super().__init__()
        self.body = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
            nn.BatchNorm1d(6),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
        )
        self.frozen = nn.BatchNorm1d(6).eval()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("shared", torch.zeros(2))
        self.body.register_buffer("shared", self.shared)
        self.steps, self.cache, self.fails = 0, None, fails

    def forward(self, x):
        self.steps += 1
        self.seen += 1
        self.shared.add_(1)
        assert self.body.shared is self.shared
        self.cache = x * random.random() + numpy.random.rand()  # noqa: NPY002
        self.late = 1
        self.register_buffer("new", torch.ones(1))
        y = self.frozen(self.body(x))
        if self.fails:
            raise RuntimeError("on purpose")
        return y + torch.rand(6)


def snapshot(model, optimizer):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "bits": {name: (id(t), t._version, t.clone()) for name, t in tensors.items()},
        "attributes": [dict(vars(module)) for module in model.modules()],
        "tables": [list(module._buffers) for module in model.modules()],
        "gradients": {name: (id(p.grad), p.grad.clone()) for name, p in model.named_parameters()},
        "flags": [module.training for module in model.modules()],
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in model.modules()
        ],
        "global hooks": (
            dict(torch_module._global_forward_hooks),
            dict(torch_module._global_forward_pre_hooks),
        ),
        "modes": len(_get_current_function_mode_stack()),
        "grad": torch.is_grad_enabled(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [str(part) for part in numpy.random.get_state()],  # noqa: NPY002
        "optimizer": optimizer.state_dict(),
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or one == other


def ready(fails=False):
    model = Busy()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 6)).square().sum().backward()
    optimizer.step()
    del model._buffers["new"], model.late
    model.fails = fails
    return model, optimizer


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", ["plain", "forward", "targets"])
def test_nothing_is_changed(fails, training, way):
    model, optimizer = ready(fails)
    if not training:
        model.eval()
    x = torch.randn(8, 6)
    before, given = snapshot(model, optimizer), x.clone()
    options = {"forward": lambda m, b: m(b).sum()} if way == "forward" else {}
    batch = (x, torch.arange(8) % 9) if way == "targets" else x
    report = audit(model, optimizer, batch, **options)
    after = snapshot(model, optimizer)
    for name in before:
        assert same(before[name], after[name]), name
    assert torch.equal(x, given)
    assert ("forward failed" in [one.what for one in report.findings]) == fails


def test_the_snapshot_would_notice():
    model, optimizer = ready()
    before = snapshot(model, optimizer)
    model(torch.randn(8, 6))
    after = snapshot(model, optimizer)
    changed = {name for name in before if not same(before[name], after[name])}
    assert changed >= {"bits", "attributes", "tables", "torch", "python", "numpy"}


def test_the_forward_runs_in_training_mode_without_gradients():
    seen = []

    class Mode(nn.Module):
        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled()))
            return x

    audit(Mode().eval(), batch=torch.randn(3, 3))
    assert seen == [(True, False)]


def test_layers_that_the_user_froze_stay_frozen():
    seen = []

    class Mode(nn.Identity):
        def forward(self, x):
            seen.append(self.training)
            return x

    audit(nn.Sequential(Mode(), Mode().eval()), batch=torch.randn(3, 3))
    assert seen == [True, False]


def test_a_batch_that_stops_the_forward_leaves_nothing_either():
    model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.BatchNorm1d(6))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not audit(model, batch=torch.tensor([[0, 1], [2, 4]]))
    assert same(before, dict(model.state_dict()))
    assert not torch_module._global_forward_hooks
    assert not _get_current_function_mode_stack()


def test_parameters_that_had_no_gradient_have_none():
    model = nn.Linear(3, 3)

    def forward(m, x):
        with torch.enable_grad():
            m(x).sum().backward()

    assert audit(model, batch=torch.randn(8, 3), forward=forward)
    assert model.weight.grad is None


def test_interrupts_are_not_findings():
    def forward(model, batch):
        raise KeyboardInterrupt

    model = nn.BatchNorm1d(3)
    with pytest.raises(KeyboardInterrupt):
        audit(model, batch=torch.randn(8, 3), forward=forward)
    assert not torch_module._global_forward_hooks


def test_two_audits_say_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.9), nn.Linear(9, 3), nn.ReLU())
    x = torch.randn(16, 6)
    first, second = audit(model, batch=x), audit(model, batch=x)
    assert first.to_dict() == second.to_dict()


def test_a_nan_in_a_weight_is_named_once_and_not_again_as_activation():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    nn.init.constant_(model[0].bias, float("nan"))
    findings = audit(model, batch=torch.randn(8, 6)).findings
    assert [(one.what, one.where) for one in findings] == [("nan", "0.bias")]


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_run_eagerly():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    nn.init.constant_(model[0].bias, -100.0)
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(8, 6))
    (finding,) = audit(compiled, batch=(torch.randn(8, 6), torch.zeros(8))).findings
    assert (finding.what, finding.where.removeprefix("_orig_mod.")) == ("dead units", "1")


def test_functions_work_as_before():
    audit(nn.ReLU(), batch=torch.randn(3, 3))
    assert torch.equal(F.relu(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
