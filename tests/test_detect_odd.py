"""detect in odd company: tensors of all kinds, programs that look at their numbers, other modes."""

import copy
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from safeops.diagnose import detect

INF, NAN = math.inf, math.nan
HIDDEN = torch.tensor([True, False, False, False])


def assigned(model):
    scores = torch.randn(3, 5)
    scores[:, 2] = -INF
    scores[0] = -INF
    scores[..., -1] = -INF


def dispatched(model):
    """As experts do it; with memory that is NaN."""
    out, first = torch.empty(4, 4), torch.tensor([True, False, True, False])
    out[first], out[~first] = model(torch.randn(2, 4)), model(torch.randn(2, 4))
    copy.deepcopy(torch.empty(3))
    torch.empty(2).resize_(3)


def checked(model):
    assert not torch.isfinite(torch.tensor([NAN, 1.0])).all()
    torch.isclose(torch.tensor([NAN]), torch.tensor([1.0]))


def cleaned(model):
    x = torch.tensor([1.0, NAN, 3.0, INF])
    x = (x - 1) / 2
    x[x.isnan()] = 0
    model(x.clamp(max=5)).sum().backward()


def placeholders(model):
    scores = torch.full((3,), NAN)
    scores[0] = 1.0
    scores.nanmean()
    scores.nansum()


def encoded(model):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    hidden = torch.tensor([[False, False, True, True], [False] * 4])
    with torch.no_grad():
        nn.TransformerEncoder(layer, 2).eval()(torch.randn(2, 4, 8), src_key_padding_mask=hidden)


def batched_gradients(model):
    x = torch.randn(3, requires_grad=True)
    torch.autograd.grad(x**2, x, torch.eye(3), is_grads_batched=True)


def rectified_adam(model):
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.RAdam([parameter], foreach=True)
    for _ in range(8):
        optimizer.step()


def pooled(model):
    x = model(torch.randn(1, 1, 4, 4))
    F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=-INF), 2)
    x.index_fill(3, torch.tensor([3]), -INF).softmax(-1)


def biased(model):
    bias = torch.where(torch.ones(2, 1).bool(), torch.tensor([[-INF]]), 0.0)
    torch.zeros(2, 4).index_add_(1, torch.tensor([1]), bias)


def positions(model):
    with torch.no_grad():
        large = torch.log(torch.arange(4.0) / 2)
        torch.where(torch.arange(4) < 2, 0.0, large)


def half_complex(model):
    torch.randn(3, dtype=torch.chalf) * 2


def conditional(model):
    torch.cond(torch.ones(()) > 0, lambda x: x + 1, lambda x: x - 1, (torch.ones(3),))


HEALTHY = (
    *(assigned, checked, cleaned, placeholders, encoded, batched_gradients, rectified_adam),
    *(pooled, biased, positions, half_complex, conditional),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", HEALTHY)
def test_is_quiet(program):
    model = nn.Linear(4, 4)
    with detect(model) as found:
        program(model)
    assert found, found


def test_is_quiet_on_memory_that_is_filled_in_parts():
    torch.use_deterministic_algorithms(True)
    try:
        test_is_quiet(dispatched)
    finally:
        torch.use_deterministic_algorithms(False)


def stale(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, NAN)
    model(torch.ones(2, 4)).sum().backward()


class MySqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.abs().sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad / (2 * y)


def clipped(model):
    model.weight.grad, model.bias.grad = torch.zeros(4, 4), torch.full((4,), 2e30)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def entropy(model):
    scores = model(torch.randn(2, 4)).masked_fill(HIDDEN, -INF)
    (-(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)).mean().backward()


ONE = torch.ones(1, 4)
SICK = (
    ("exp", "overflow", lambda m: (m(ONE).sum() * torch.exp(torch.tensor(100.0))).backward()),
    ("mul", "constant that is not finite", lambda m: (m(ONE).sum() * INF).backward()),
    (
        "log",
        "log of a non-positive number",
        lambda m: (m(ONE).sum() - torch.eye(2).log()[0, 1]).backward(),
    ),
    ("linalg_vector_norm", "overflow", lambda m: m(1e30 * ONE).norm().backward()),
    ("AccumulateGrad", "bad gradient", stale),
    ("MySqrtBackward", "undefined gradient", lambda m: MySqrt.apply(m(ONE) * 0).sum().backward()),
    ("_foreach_norm", "overflow", clipped),
    ("mul", "inf - inf or 0 * inf", entropy),
    (
        "mul",
        "overflow",
        lambda m: (m(1e38 * ONE).abs().masked_fill(HIDDEN, -INF) * 1e3).softmax(-1),
    ),
    ("exp", "overflow", lambda m: (1e30 * m(ONE).abs().masked_fill(HIDDEN, -INF)).exp().sum()),
    (
        "SqrtBackward0",
        "infinite slope",
        lambda m: (
            checkpoint(
                lambda x: (m(x) * 0).sqrt(), ONE.clone().requires_grad_(), use_reentrant=True
            )
            .sum()
            .backward()
        ),
    ),
)


@pytest.mark.parametrize(("op", "cause", "program"), SICK)
def test_tells(op, cause, program):
    model = nn.Linear(4, 4)
    with detect(model) as found:
        program(model)
    assert (found.first.op, found.first.cause) == (op, cause)


def test_the_clip_names_the_parameter():
    model = nn.Linear(4, 4)
    with detect(model) as found:
        clipped(model)
    assert found.first.parameter == "bias"


def remedy(program):
    model = nn.Linear(4, 4)
    with detect(model) as found:
        program(model)
    return found.first.remedy


def test_remedies_fit_the_place():
    assert "swap_" not in remedy(lambda m: m(0 * ONE).relu().mul(0).log())
    assert "safe_mode" in remedy(lambda m: m(0 * ONE).relu().mul(0).log())
    assert "mean" not in remedy(lambda m: (m(1e38 * ONE) * 1e3).mean())
    assert "clip_grad_norm_" in remedy(clipped)
    assert "zero_grad" in remedy(stale)


def test_a_whole_model_in_a_checkpoint_is_one_forward():
    model = nn.Linear(4, 4)
    with detect(model) as found:
        for step in range(3):
            loss = checkpoint(model, ONE, use_reentrant=False).sum()
            (loss * NAN if step == 2 else loss).backward()
    assert found.first.step == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take no notes")
def test_an_exception_tells_what_was_found():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(IndexError) as raised, detect(model):
        (model(0 * ONE) * 0).log()[2]
    assert "log of a non-positive number" in raised.value.__notes__[0]


def test_allow_knows_its_names():
    with pytest.raises(ValueError, match="meann"):
        detect(nn.Linear(1, 1), allow=("meann",))
    detect(nn.Linear(1, 1), allow=("mean", "DivBackward0", "softmax", "mylib::op"))


def test_left_in_another_order():
    engine, model = torch.autograd._engine_run_backward, nn.Linear(4, 4)
    one, other = detect(model), detect(model)
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert torch.autograd._engine_run_backward is engine


def test_a_backward_of_a_part_looks_at_that_part():
    h = torch.randn(4, requires_grad=True)
    with detect(nn.Linear(1, 1)) as found:
        for _ in range(3):
            g = h.tanh()
            torch.autograd.grad(g.sum(), h, retain_graph=True)
            h = g
    assert found


def test_rows_of_the_same_fault_are_one():
    model = nn.Linear(4, 4)
    with detect(model) as found:
        for _ in range(5):
            (model(0 * ONE) * 0).log()
            (model(0 * ONE) * 0).log2()
    assert [row[5] for row in found.rows()] == ["0 to 8 (5)", "1 to 9 (5)"]
