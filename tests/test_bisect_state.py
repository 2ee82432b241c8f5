"""Bisection runs every time from the same state of training, and leaves it bit by bit."""

import random

import numpy
import pytest
import torch
from torch import nn

from safeops.diagnose.bisection.bisect import bisect_autocast, bisect_layers
from tests.bisect_cases import sgd, stepper


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.last = nn.Linear(6, 1)
        self.calls = 0
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        self.count = self.count + 1  # another tensor
        noise = random.random() + numpy.random.rand()  # noqa: NPY002 - the global one is meant
        return self.last(self.net(x + noise))


class Training:
    def __init__(self):
        self.model = Stateful()
        self.model.net[0].weight.requires_grad_(False)
        groups = [{"params": self.model.net.parameters(), "lr": 0.1}]
        groups += [{"params": self.model.last.parameters(), "lr": 1e36}]
        self.optimizer = torch.optim.AdamW(groups)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        self.generator = torch.Generator().manual_seed(3)
        self.average = nn.Linear(2, 2)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3
        self.step(fail=False)
        self.average.train()
        self.optimizer.param_groups[1]["lr"] = 1e36

    @property
    def others(self):
        return [self.scheduler, self.scaler, self.generator, self.average]

    def step(self, fail=True):
        for _ in range(2):
            loss = self.model(torch.randn(8, 6, generator=self.generator)).mean()
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            with torch.no_grad():
                self.average.weight.lerp_(torch.ones(2, 2), 0.5)
                self.average.eval()
            if fail == "raise":
                self.model.eval().requires_grad_(False)
                raise KeyError("the step's own")
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        self.model.last.weight.data = self.model.last.weight.data * 1.5
        return loss if fail else None

    def everything(self):
        model = self.model
        tensors = [*model.parameters(), *model.buffers(), *self.average.parameters()]
        gradients = [parameter.grad for parameter in model.parameters()]
        tensors += [gradient for gradient in gradients if gradient is not None]
        values = [value for state in self.optimizer.state.values() for value in state.values()]
        groups = [{**group, "params": [*map(id, group["params"])]} for group in self.groups]
        return [
            [(id(tensor), tensor.data_ptr(), tensor.tolist()) for tensor in [*tensors, *values]],
            [gradient is None for gradient in gradients],
            [parameter.requires_grad for parameter in model.parameters()],
            [module.training for module in (*model.modules(), self.average)],
            model.calls,
            repr(groups),
            repr(self.scheduler.state_dict()),
            repr(vars(self.scaler)),
            [*map(str, model.state_dict())],
            self.generator.get_state().tolist(),
            torch.get_rng_state().tolist(),
            repr(random.getstate()),
            repr(numpy.random.get_state()),  # noqa: NPY002
        ]

    @property
    def groups(self):
        return self.optimizer.param_groups


@pytest.mark.parametrize("bisect", [bisect_layers, bisect_autocast])
@pytest.mark.parametrize("fail", [True, "raise"])
def test_the_state_is_put_back_bit_by_bit(bisect, fail):
    training = Training()
    before = training.everything()
    if fail == "raise":
        with pytest.raises(KeyError, match="own"):
            bisect(training.model, lambda: training.step("raise"), others=training.others)
    else:
        report = bisect(training.model, training.step, others=training.others)
        assert report.verdict.startswith("found" if bisect is bisect_layers else "all left")
    for was, now in zip(before, training.everything(), strict=True):
        assert now == was
    training.step()
    assert training.everything()[0] != before[0]


def test_every_run_begins_alike():
    training, losses = Training(), []

    def step():
        training.step()
        losses.append(training.model.net[0].bias.detach().clone())
        return torch.tensor(torch.nan)

    bisect_layers(training.model, step, others=training.others, filter_fn=lambda m, n: n == "last")
    assert len(losses) == 3
    assert torch.equal(losses[0], losses[1])


def test_sparse_gradients_and_expanded_buffers():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    model.register_buffer("wide", torch.zeros(1).expand(4), persistent=False)
    optimizer = sgd(model, "0")
    model(torch.tensor([1, 2])).sum().backward()
    before = [p.grad.to_dense().clone() for p in model.parameters()]
    report = bisect_layers(model, stepper(model, optimizer, torch.tensor([1, 2])))
    assert report.modules == ["0"]
    assert model[0].weight.grad.is_sparse
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad.to_dense(), gradient)
