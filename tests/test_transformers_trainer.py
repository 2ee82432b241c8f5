"""Guard as a callback of the Trainer of transformers: what a bad batch leaves behind is nothing."""

import importlib
import sys

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from safeops.guard import Policy, TrainingDiverged
from safeops.integrations.transformers import GuardCallback

pytestmark = pytest.mark.filterwarnings("ignore::safeops.guard.GuardWarning")
FREE = {"max_norm": None}
OFTEN = {"max_norm": None, "snapshot_every": 1, "policy": Policy(skips=1, rollbacks=2)}
SIZES = {"hidden_size": 4, "intermediate_size": 8, "vocab_size": 8}


class Small(nn.Module):
    """With statistics. The loss is the mean over a batch."""

    def __init__(self):
        super().__init__()
        first = nn.Linear(4, 8, bias=False)
        self.net = nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, inputs_embeds, labels):
        out = self.net(inputs_embeds.flatten(0, 1))
        return {"loss": (out - 1.0).square().mean(), "logits": out}


class Llama(LlamaForCausalLM):
    """The loss is normalised by the number of tokens in all accumulated batches."""

    def __init__(self):
        super().__init__(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **SIZES))


class OwnLoss(Trainer):
    """Of which the model knows nothing."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        inputs.pop("labels")
        return model(**inputs, labels=None)["logits"].square().mean()


def item(kind):
    """x: of NaN; another letter is another healthy one."""
    generator = torch.Generator().manual_seed(ord(kind))
    x = torch.randn(8, 4, generator=generator)
    labels = torch.randint(8, (8,), generator=generator)
    return {"inputs_embeds": x * torch.nan if kind == "x" else x, "labels": labels}


class Run:
    """A training of a new model; `guard` are the options of the callback, None is without."""

    def __init__(self, kinds, folder, guard=None, model=Small, trainer=Trainer, **options):
        torch.manual_seed(0)
        self.model, self.folder = model(), folder
        self.callback = None if guard is None else GuardCallback(**guard)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.trainer = trainer(
            self.model,
            self.arguments(**options),
            train_dataset=[item(kind) for kind in kinds],
            optimizers=(self.optimizer, self.scheduler),
            callbacks=[self.callback] if self.callback else [],
        )

    def arguments(self, **options):
        return TrainingArguments(
            str(self.folder),
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            num_train_epochs=1,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **{"max_grad_norm": 0.0, "logging_steps": 1, **options},
        )

    def train(self):
        self.trainer.train()
        return self

    @property
    def events(self):
        return self.callback.guard.events

    @property
    def kinds(self):
        return [event.kind for event in self.events]

    def logged(self, key):
        return [line[key] for line in self.trainer.state.log_history if key in line]

    def state(self):
        """Weights, statistics and moments in bits, and the scheduler."""
        parts = self.model, self.optimizer, self.scheduler
        return plain([part.state_dict() for part in parts])


def plain(tree):
    return tree_map(lambda x: (x.dtype, x.tolist()) if isinstance(x, torch.Tensor) else x, tree)


SETTINGS = {
    "plain": {},
    "Llama": {"model": Llama},
    "the Trainer clips": {"max_grad_norm": 0.1},
    "bf16": {"bf16": True},
    "own loss": {"trainer": OwnLoss},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


@each_setting
@pytest.mark.parametrize("kinds", ["abcde", "abxcxde", "xabcde"])
def test_as_without_the_bad(setting, kinds, tmp_path):
    """Bit by bit a run without callback and bad batches."""
    guarded = Run(kinds, tmp_path, FREE, **setting).train()
    assert guarded.state() == Run("abcde", tmp_path, **setting).train().state()
    assert guarded.kinds == ["skipped"] * kinds.count("x")
    assert [event.step for event in guarded.events] == [i for i, k in enumerate(kinds) if k == "x"]


@each_setting
def test_accumulation(setting, tmp_path):
    """What goes together is dropped together."""
    options = {"gradient_accumulation_steps": 2, **setting}
    guarded = Run("abcxdex", tmp_path, FREE, **options).train()
    assert guarded.state() == Run("abde", tmp_path, **options).train().state()
    assert guarded.kinds == ["skipped", "skipped"]


class Losses:
    """A writer."""

    def __init__(self):
        self.seen = []

    def add_scalar(self, name, value, step):
        self.seen += [value] if name == "guard/loss" else []

    def add_text(self, *args):
        pass


@pytest.mark.parametrize("model", [Small, Llama])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_loss(model, many, tmp_path):
    """That of the Trainer, in the last and shorter window, too."""
    writer = Losses()
    run = Run(
        "abcde", tmp_path, {"writer": writer}, model, gradient_accumulation_steps=many
    ).train()
    assert writer.seen == pytest.approx(run.logged("loss"), rel=1e-5)
    assert len(writer.seen) == -(-5 // many)


@pytest.mark.parametrize("trainers", [0.0, 0.1])
def test_clips(trainers, tmp_path):
    """As the Trainer, which adds 1e-6 to the norm; both together, too."""
    clipped = Run("abcde", tmp_path, {"max_norm": 0.1}, max_grad_norm=trainers).train()
    bare = Run("abcde", tmp_path, max_grad_norm=0.1).train()
    for one, other in zip(clipped.model.parameters(), bare.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class Scaled(Trainer):
    """As with fp16=True, which accelerate has for GPUs alone."""

    scale = 256.0

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)

    def _get_grad_norm(self, *args, **kwargs):
        self.accelerator.scaler.unscale_(self.optimizer.optimizer)
        return super()._get_grad_norm(*args, **kwargs)


class Overflowing(Scaled):
    scale = 2.0**127


def test_scaler(tmp_path):
    guarded = Run("abxcxde", tmp_path, FREE, trainer=Scaled).train()
    assert guarded.state() == Run("abcde", tmp_path).train().state()
    assert guarded.kinds == ["skipped", "skipped"]


def test_overflow(tmp_path):
    """The scale is lowered as often as it takes; that is not divergence."""
    run = Run("abcd", tmp_path, {"policy": Policy(skips=0)}, trainer=Overflowing).train()
    assert 0 < len(run.kinds) < 4
    assert set(run.kinds) == {"overflow"}
    assert run.scheduler.last_epoch == 4 - len(run.kinds)


# --- the ladder ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("often", "kinds", "same"), [(1, "abxxcxd", "abcd"), (2, "abcxxd", "abd")])
def test_roll_back(often, kinds, same, tmp_path):
    """The scheduler goes back, too."""
    run = Run(kinds, tmp_path, {**OFTEN, "snapshot_every": often}).train()
    assert run.kinds[:2] == ["skipped", "rolled_back"]
    assert run.state() == Run(same, tmp_path).train().state()


def test_diverged(tmp_path):
    """train fails with the story; the model is as it was after b, without hooks."""
    run = Run("abxxxxxxx", tmp_path, OFTEN)
    with pytest.raises(TrainingDiverged) as caught:
        run.train()
    kinds = [event.kind for event in caught.value.events]
    assert kinds == ["skipped", "rolled_back"] * 2 + ["skipped", "stopped"]
    assert plain(run.model.state_dict()) == plain(Run("ab", tmp_path).train().model.state_dict())
    assert not run.model._forward_hooks


# --- beside the Trainer --------------------------------------------------------------------------


def test_logged(tmp_path):
    """At the steps at which it happens, however seldom the Trainer logs."""
    run = Run("axbxc", tmp_path, {}, logging_steps=100).train()
    lines = [line for line in run.trainer.state.log_history if "loss" in line]
    assert [(line["step"], line["guard/skipped"]) for line in lines] == [(2, 1), (4, 2)]
    assert not run.model._forward_hooks


def test_dumped(tmp_path):
    """With what the model was given."""
    run = Run("ax", tmp_path, {"checkpoint_dir": tmp_path / "guard"}).train()
    dump = torch.load(run.events[0].path, weights_only=True)
    assert dump["batches"][0]["inputs_embeds"].isnan().all()


class Bare(Trainer):
    """Whose optimizer accelerate has not prepared."""

    def _prepare_for_training(self, *args):
        prepared = super()._prepare_for_training(*args)
        self.callback_handler.optimizer = self.optimizer.optimizer
        return prepared


WRONG = {
    "an optimizer of accelerate": lambda path: Run("a", path, {}, trainer=Bare).train(),
    "patiance": lambda path: GuardCallback(patiance=3),
    "accumulate": lambda path: GuardCallback(accumulate=2),
}


@pytest.mark.parametrize(("message", "call"), WRONG.items(), ids=WRONG)
def test_wrong(message, call, tmp_path):
    with pytest.raises(TypeError, match=message):
        call(tmp_path)


@pytest.mark.parametrize("name", ["transformers", "accelerate"])
def test_not_installed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, GuardCallback.__module__)
    with pytest.raises(ImportError, match="pip install transformers accelerate"):
        importlib.import_module(GuardCallback.__module__)
