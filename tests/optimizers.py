"""torch's optimizers in all their forms, over three parameters whose gradients are given."""

import itertools
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import nn

from safeops import _multi_tensor
from safeops._lots import Lots
from tests.gradient_samples import bits, draw

SHAPES = ((4, 5), (3,), (70,))
MAKERS = {
    "SGD": lambda params, **form: torch.optim.SGD(params, 0.1, **form),
    "momentum": lambda params, **form: torch.optim.SGD(
        params, 0.1, momentum=0.9, dampening=0.1, **form
    ),
    "Adam": lambda params, **form: torch.optim.Adam(params, 0.1, weight_decay=0.1, **form),
    "AdamW": lambda params, **form: torch.optim.AdamW(params, 0.1, amsgrad=True, **form),
    "Adagrad": lambda params, **form: torch.optim.Adagrad(params, 0.1, **form),
    "RMSprop": lambda params, **form: torch.optim.RMSprop(params, 0.1, momentum=0.9, **form),
}
FORMS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@pytest.fixture(autouse=True)
def one_thread():
    """In the modules that import it: many fused steps on few elements."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def maker(name, form):
    return pytest.param(lambda params: MAKERS[name](params, **FORMS[form]), id=f"{name} {form}")


PAIRS = [pair for pair in itertools.product(MAKERS, FORMS) if pair != ("RMSprop", "fused")]
FUSED = [name for name, form in PAIRS if form == "fused"]
each_optimizer = pytest.mark.parametrize("make", [maker(*pair) for pair in PAIRS])
each_fused = pytest.mark.parametrize("make", [maker(name, "fused") for name in FUSED])
plain_and_fused = pytest.mark.parametrize(
    "make", [maker("momentum", "plain"), maker("momentum", "fused")]
)


class Run:
    """Parameters and their optimizer; two of the same maker begin alike."""

    def __init__(self, make, dtype=torch.float32):
        self.params = [nn.Parameter(draw(*shape, dtype=dtype)) for shape in SHAPES]
        self.optimizer = make(self.params)

    @property
    def gradients(self):
        return [p.grad for p in self.params]

    def loss(self, seed, size=1.0, bad=None):
        """Its gradients are normal numbers times size; one of them is bad, if given."""
        factors = [draw(*p.shape, dtype=p.dtype, seed=seed) * size for p in self.params]
        if bad is not None:
            factors[1][2] = bad
        return sum((p * f).sum() for p, f in zip(self.params, factors, strict=True))

    def backward(self, *args, **options):
        self.optimizer.zero_grad()
        self.loss(*args, **options).backward()

    def train(self, seed, size=1.0, bad=None):
        self.backward(seed, size, bad)
        self.optimizer.step()

    def norm(self):
        """Of the gradients, in float64."""
        return torch.cat([g.double().reshape(-1) for g in self.gradients]).norm().item()

    def scale(self, factor):
        """Multiplies the gradients, rounding once."""
        for param in self.params:
            param.grad = (param.grad.double() * factor).to(param.dtype)

    @property
    def moments(self):
        return [self.optimizer.state.get(p, {}) for p in self.params]

    def state(self):
        """Weights, moments and step counts, as they lie in memory."""
        return list(map(bits, self.params)), [
            {name: bits(torch.as_tensor(value)) for name, value in moments.items()}
            for moments in self.moments
        ]

    def numbers(self):
        found = [p.detach() for p in self.params]
        return found + [t for moments in self.moments for t in moments.values() if t is not None]


def assert_near(ours, theirs, ulps=8):
    """All numbers within ulps of the largest one of their tensor."""
    for one, other in zip(ours.numbers(), theirs.numbers(), strict=True):
        unit = torch.finfo(other.dtype).eps * other.abs().max()
        error = ((one - other).abs().max() / unit).item() if unit else one.abs().max().item()
        assert error <= ulps, f"{error} ULP: {one} for {other}"


@contextmanager
def writes(expected):
    """The block writes gradients that many times."""
    with mock.patch.object(Lots, "write", autospec=True, side_effect=Lots.write) as spy:
        yield
    assert spy.call_count == expected


@contextmanager
def reads(expected):
    """The block reads lists of tensors that many times."""
    with mock.patch.object(_multi_tensor, "read", wraps=_multi_tensor.read) as spy:
        yield
    assert spy.call_count == expected


def look(optimizer):
    """What the step sees, as (bits of the gradients, grad_scale), a pair for each step."""
    seen = []

    def hook(optimizer, *_):
        scale = getattr(optimizer, "grad_scale", None)
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        seen.append((list(map(bits, grads)), None if scale is None else scale.item()))

    optimizer.register_step_pre_hook(hook)
    return seen
