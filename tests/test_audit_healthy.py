"""Healthy models, fresh or trained, and healthy batches: nothing is found."""

import pytest
import torch
from torch import nn

from safeops.diagnose.auditing.audit import audit
from tests import swap_models

MODELS = sorted(swap_models.BUILT)
LANGUAGE = ("bert", "gpt2", "llama", "t5")


def quiet(*given, **options):
    report = audit(*given, **options)
    assert report.findings == [], report.rows()
    return report


@pytest.mark.parametrize("name", MODELS)
def test_random_models_with_their_loss(name):
    model, loss, batch = swap_models.built(name)
    quiet(model, torch.optim.AdamW(model.parameters()), batch(), forward=loss)


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_on_a_mapping(name):
    model, _, batch = swap_models.built(name)
    words = batch()
    labels = words.masked_fill(swap_models.padding() == 0, -100)
    given = {"input_ids": words, "attention_mask": swap_models.padding(), "labels": labels}
    report = quiet(model, batch=given)
    assert any("embed" in gain.name or "wte" in gain.name or "shared" in gain.name
               for gain in report.gains)  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("bad", [swap_models.WORDS, -1])
def test_their_words_and_labels_out_of_range_are_found(name, bad):
    model, _, batch = swap_models.built(name)
    for key in "input_ids", "labels":
        words = batch()
        given = {"input_ids": words, "attention_mask": swap_models.padding(), "labels": words}
        given[key] = words.clone()
        given[key][0, 3] = bad
        findings = audit(model, batch=given).findings
        assert [(one.what, one.where) for one in findings] == [("class index", f"batch['{key}']")]


@pytest.mark.parametrize("name", LANGUAGE)
def test_their_labels_that_are_all_ignored_are_found(name):
    model, _, batch = swap_models.built(name)
    words = batch()
    given = {"input_ids": words, "attention_mask": swap_models.padding()}
    findings = audit(model, batch=given | {"labels": torch.full_like(words, -100)}).findings
    found = [(one.what, one.where, one.severity) for one in findings]
    assert found == [("ignored targets", "batch['labels']", "error")]


@pytest.mark.parametrize("name", MODELS)
def test_trained_models(name):
    model, loss, batch = swap_models.built(name)
    swap_models.trained(model, loss, batch)
    quiet(model, batch=batch(), forward=loss)


MODULES = [
    (nn.Linear, 1, 1),
    (nn.Linear, 10000, 1),
    (nn.Linear, 1, 10000),
    (nn.Bilinear, 3, 500, 7),
    (nn.Conv1d, 512, 2, 9),
    (nn.Conv2d, 1, 512, 3),
    (nn.Conv2d, 512, 1, 3),
    (nn.Conv3d, 3, 8, 5),
    (nn.ConvTranspose1d, 512, 1, 4),
    (nn.ConvTranspose2d, 1, 512, 4),
    (nn.ConvTranspose3d, 8, 8, 2),
    (nn.Embedding, 5000, 3),
    (nn.EmbeddingBag, 10, 64),
    (nn.RNN, 1000, 4),
    (nn.LSTM, 4, 1000),
    (nn.GRU, 64, 64, 2),
    (nn.RNNCell, 500, 4),
    (nn.LSTMCell, 4, 500),
    (nn.GRUCell, 64, 64),
    (nn.MultiheadAttention, 64, 4),
    (nn.TransformerDecoderLayer, 32, 4),
    (nn.BatchNorm2d, 8),
    (nn.LayerNorm, 8),
    (nn.GroupNorm, 2, 8),
    (nn.InstanceNorm2d, 8),
    (nn.RMSNorm, 8),
    (nn.PReLU, 8),
    (nn.AdaptiveLogSoftmaxWithLoss, 32, 100, [10, 50]),
    (nn.Softmax2d,),
    (nn.Identity,),
]


@pytest.mark.parametrize("made", MODULES, ids=lambda made: f"{made[0].__name__}{made[1:]}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_fresh_modules(made, dtype):
    quiet(made[0](*made[1:]).to(dtype))


def depthwise():
    return nn.Conv2d(64, 64, 3, groups=64, bias=False)


def lora():
    layers = nn.ModuleDict({"lora_A": nn.Linear(64, 4), "lora_B": nn.Linear(4, 64)})
    nn.init.zeros_(layers["lora_B"].weight)
    return layers


def residual_conv():
    """As in residual nets: He by the fan out, the last layer of a branch 0."""
    model = nn.Sequential(nn.Conv2d(256, 64, 1), nn.BatchNorm2d(64), nn.ReLU(),
                          nn.Conv2d(64, 256, 3, padding=1), nn.BatchNorm2d(256))  # fmt: skip
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    nn.init.zeros_(model[4].weight)
    return model


def policy():
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    nn.init.orthogonal_(model[0].weight, 2**0.5)
    nn.init.orthogonal_(model[2].weight, 0.01)
    return model


def averaging():
    """A fixed filter, whose channels are alike on purpose."""
    layer = nn.Conv2d(8, 8, 3, bias=False).requires_grad_(False)
    nn.init.constant_(layer.weight, 1 / 9)
    return nn.Sequential(layer, nn.Conv2d(8, 8, 3))


def normalised_weights():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    with torch.no_grad():
        layer.parametrizations.weight.original1.mul_(50)  # only its direction counts
    return layer


def masked():
    """Masks are kept as buffers."""
    model = nn.Linear(4, 4)
    model.register_buffer("causal", torch.full((8, 8), -torch.inf).triu(1))
    model.register_buffer("filled", torch.full((8, 8), torch.finfo(torch.float32).min).triu(1))
    return model


@pytest.mark.parametrize(
    "build", [depthwise, lora, residual_conv, policy, averaging, normalised_weights, masked]
)
def test_deliberate_initialisations(build):
    quiet(build())


def test_a_chain_that_starts_at_zero_with_a_bias_is_only_warned_of():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[2].weight)
    assert {one.severity for one in audit(model).findings} == {"warning"}


class Layers(nn.Module):
    """Two branches beside each other, as in deformable attention: offsets start as their bias."""

    def __init__(self):
        super().__init__()
        self.offsets, self.values = nn.Linear(8, 8), nn.Linear(8, 8)
        nn.init.zeros_(self.offsets.weight)
        nn.init.uniform_(self.offsets.bias)


def test_a_branch_that_starts_at_its_bias():
    quiet(Layers())


SEEDED = torch.Generator().manual_seed(0)
X, Y = torch.randn(16, 6, generator=SEEDED), torch.arange(16) % 3
INDICATORS = torch.ones(16, 6)
TIMES = torch.rand(16, generator=SEEDED) * 1000


@pytest.mark.parametrize(
    "batch",
    [
        X,
        (X, Y),
        [X, {"y": Y, "index": torch.arange(16) + 5000}],
        (X, torch.arange(16) + 5000, Y),
        {"input": X, "y": Y, "weights": torch.rand(16, generator=SEEDED)},
        {"input": X, "flags": INDICATORS, "times": TIMES, "empty": torch.zeros(0, 6)},
        (INDICATORS, Y.masked_fill(Y == 1, -100)),
        (X, torch.randn(16, 3, generator=SEEDED)),
        X[:0],
        X[:1].expand(16, 6) + torch.randn(16, 1, generator=SEEDED),
        (X, [], None, "text", 3),
    ],
)
def test_healthy_batches(batch):
    torch.manual_seed(1)
    quiet(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), batch=batch)


def test_images_in_0_to_1():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(inplace=True), nn.Conv2d(16, 8, 3))
    quiet(model, batch=torch.rand(4, 3, 8, 8))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, key_padding_mask=None):
        return self.attention(x, x, x, key_padding_mask=key_padding_mask, need_weights=False)[0]


def test_a_padding_mask_that_hides_nothing_in_some_rows():
    padded = torch.zeros(4, 5, dtype=torch.bool)
    padded[1:, 3:] = True
    quiet(Attending(), batch=(torch.randn(4, 5, 8), padded))
    quiet(Attending(), batch={"x": torch.randn(4, 5, 8), "key_padding_mask": padded})


def test_autocast_and_scaled_training():
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.autocast("cpu", torch.bfloat16):
        quiet(model, torch.optim.AdamW(model.parameters()), (X, Y))


def test_warm_up_from_zero():
    model = nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    assert optimizer.param_groups[0]["lr"] == 0
    quiet(model, optimizer)


OPTIMIZERS = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam",
    "RAdam", "RMSprop", "Rprop", "SGD",
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_their_defaults_and_state(name):
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = getattr(torch.optim, name)(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    quiet(model, optimizer, (X, Y))
