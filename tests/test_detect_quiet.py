"""detect is quiet on what is healthy."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import safeops
from safeops.diagnose import detect
from tests.samples import label
from tests.swap_models import BUILT, built


def trained(model, loss, steps=2, optimizer=None, scaler=None):
    """What is found in some steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    with detect(model) as found:
        for _ in range(steps):
            optimizer.zero_grad()
            if scaler is None:
                loss().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            else:
                scaler.scale(loss()).backward()
                scaler.step(optimizer)
                scaler.update()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("swap", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
@pytest.mark.parametrize("name", BUILT)
def test_models_that_people_have(name, dtype, swap):
    net, loss, batch = built(name, dtype)
    net.train()
    if swap:
        safeops.swap_(net)
    x = batch()
    x = x.to(dtype) if x.is_floating_point() else x
    assert trained(net, lambda: loss(net, x)), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_generation(name):
    """With masks, positions, and what top-k and top-p hide."""
    net, _, words = built(name)
    options = {"do_sample": True, "top_k": 5, "top_p": 0.8, "max_new_tokens": 4, "pad_token_id": 0}
    with detect(net.eval()) as found, torch.no_grad():
        net.generate(words(), **options)
        net.generate(words(), num_beams=2, max_new_tokens=4, pad_token_id=0)
    assert found, found


SEEN = torch.tensor([[True, True, False, False], [True, False, False, False]])
ADDED = torch.where(SEEN, 0.0, -torch.inf)
CAUSAL = torch.full((4, 4), -torch.inf).triu(1)


class Masked(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.lin, self.attend = nn.Linear(8, 8), attend
        self.register_buffer("causal", CAUSAL.clone())

    def forward(self, x):
        return self.attend(self.lin(x), self)


def by_fill(x, net):
    scores = (x @ x.mT).masked_fill(~SEEN[:, None], -math.inf)
    return scores.softmax(-1) @ x


def by_sum(x, net):
    return (x @ x.mT + ADDED[:, None] + net.causal).softmax(-1) @ x


def by_log(x, net):
    return torch.softmax(x @ x.mT + SEEN[:, None].float().log(), -1) @ x


def by_where(x, net):
    scores = torch.where(SEEN[:, None], x @ x.mT, float("-inf"))
    return F.log_softmax(scores, -1).exp() @ x


def by_call(x, net):
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], SEEN[:, None, None])


def by_causal_call(x, net):
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)


def by_maximum(x, net):
    best = torch.full((2, 8), -torch.inf)
    for step in range(4):
        best = torch.maximum(best, x[:, step])
    return best


def by_pooling(x, net):
    return x.masked_fill(~SEEN[..., None], -torch.inf).amax(1)


def by_topk(x, net):
    least = x.topk(3, -1).values[..., -1:]
    return x.masked_fill(x < least, -torch.inf).logsumexp(-1)


def by_scatter(x, net):
    return (
        torch.full_like(x, -torch.inf).scatter(-1, x.argmax(-1, keepdim=True), 0.5).softmax(-1) * x
    )


def by_assignment(x, net):
    scores = x @ x.mT
    scores[~SEEN[:, None].expand_as(scores)] = -torch.inf
    scores[0] += 0.0
    return scores.softmax(-1) @ x


def by_selection(x, net):
    chosen = x[x > 1e6]
    return x.sum() + chosen.sum() / max(chosen.numel(), 1)


def by_length(x, net):
    packed = nn.utils.rnn.pack_padded_sequence(x, SEEN.sum(-1), batch_first=True)
    return packed.data


def by_placeholder(x, net):
    out = x.new_empty(x.shape)
    out[:, ::2], out[:, 1::2] = x[:, 1::2], x[:, ::2]
    return out * x


MASKS = [value for name, value in sorted(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("attend", MASKS, ids=lambda attend: attend.__name__)
def test_masks_and_padding(attend):
    model = Masked(attend)
    x = torch.randn(2, 4, 8)
    found = trained(model, lambda: model(x).square().mean())
    assert found, found


def test_a_mask_in_the_batch():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 4, 8)
    for weights in (True, False):

        def loss(weights=weights):
            return model(x, x, x, key_padding_mask=ADDED, need_weights=weights)[0].sum()

        assert trained(model, loss)


def test_nan_in_what_is_not_read():
    labels = torch.tensor([1.0, math.nan, 2.0, math.nan])
    model = nn.Linear(3, 1)
    x = torch.randn(4, 3)

    def loss():
        known = ~labels.isnan()
        return (model(x).squeeze(-1)[known] - labels[known]).square().mean() + torch.nan_to_num(
            labels
        ).mean()

    assert trained(model, loss)


def test_where_of_a_nan():
    x = torch.tensor([[1.0, math.nan, 3.0]])
    model = nn.Linear(3, 1)
    assert trained(model, lambda: model(torch.where(x.isnan(), 0.0, x)).sum())


@pytest.mark.parametrize("scaler", [torch.amp.GradScaler, safeops.amp.GradScaler])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_warms_up(scaler, fused):
    """The first scales are too large: gradients overflow, steps are skipped, nothing is wrong."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    x = 30 * torch.randn(16, 8)

    def loss():
        with torch.autocast("cpu", torch.float16):
            return 1e3 * model(x).float().square().mean()

    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = scaler("cpu", init_scale=2.0**24)
    found = trained(model, loss, 16, optimizer, scaler)
    assert found.handled
    assert found, found
    assert "skipped" in found.summary()


def test_a_scaler_cannot_help():
    """At a scale of 1 the gradient is still infinite."""
    model = nn.Linear(8, 1)

    def loss():
        with torch.autocast("cpu", torch.float16):
            return model(torch.ones(4, 8)).mul(0).sqrt().sum()

    found = trained(model, loss, 3, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    assert found.first.cause == "infinite slope"


def test_dropout_and_recurrence():
    model = nn.LSTM(4, 4, 2, batch_first=True, dropout=0.5)
    assert trained(model, lambda: model(torch.randn(2, 5, 4))[0].sum())


def test_embeddings_with_sparse_gradients():
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    with detect(model) as found:
        for _ in range(2):
            model(torch.tensor([1, 2, 2])).sum().backward()
            optimizer.step()
    assert found
