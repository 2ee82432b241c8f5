"""Guard as a callback of Lightning: what a bad batch leaves behind is nothing."""

import importlib
import sys

import pytest
import pytorch_lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils._pytree import tree_map

from safeops import amp
from safeops.guard import Policy, TrainingDiverged
from safeops.integrations.lightning import GuardCallback

pytestmark = [
    pytest.mark.filterwarnings(rf"ignore:{warning}")
    for warning in (
        ":safeops.guard.GuardWarning",
        ":safeops.NonFiniteGradientWarning",
        r".isinstance\(treespec, LeafSpec\).:FutureWarning:.*lightning",
        ".* does not have many workers:UserWarning:.*lightning",
    )
]
FREE = {"max_norm": None}
HOOKS = {"lr_scheduler_step", "configure_gradient_clipping"}
QUIET = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")


class Body:
    """With statistics; of a batch "n" the loss is finite and the gradients are NaN."""

    automatic = True

    def __init__(self, interval="step"):
        super().__init__()
        torch.manual_seed(0)
        first = nn.Linear(4, 8, bias=False)
        self.net = nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.interval, self.rates, self.losses = interval, [], []
        self.automatic_optimization = self.automatic

    def training_step(self, batch, index):
        kind, x = batch
        if kind == "-":
            return None
        out = self.net(x)
        loss = (out - 1.0).square().mean()
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        self.losses.append(loss.item())
        return loss + (0.0 * out).abs().sum().sqrt() if kind == "n" else loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": self.interval}]


class Model(Body, LightningModule):
    pass


class Manual(Model):
    automatic = False


class Twin(Body, pytorch_lightning.LightningModule):
    """The same package by its other name, whose Trainer takes no modules of the first."""


def batch(kind):
    """x: of NaN, n: see Body, -: none; another letter is another healthy batch."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(ord(kind)))
    return kind, x * torch.nan if kind == "x" else x


class Run:
    """A fit of a new model; `guard` are the options of the callback, None is without."""

    def __init__(self, kinds, guard=None, model=None, make=Trainer, ckpt_path=None, **options):
        self.model = Model() if model is None else model
        self.callback = None if guard is None else GuardCallback(**guard)
        options = dict.fromkeys(QUIET, False) | {"max_epochs": 1, "accelerator": "cpu"} | options
        callbacks = [self.callback] if self.callback else []
        self.trainer = make(devices=1, callbacks=callbacks, **options)
        self.loader = torch.utils.data.DataLoader([batch(kind) for kind in kinds], batch_size=None)
        self.trainer.fit(self.model, self.loader, ckpt_path=ckpt_path)

    @property
    def events(self):
        return self.callback.guard.events

    @property
    def kinds(self):
        return [event.kind for event in self.events]

    def state(self):
        """Weights, statistics and moments in bits, and the scheduler."""
        scheduler = self.trainer.lr_scheduler_configs[0].scheduler.state_dict()
        return plain([self.model.state_dict(), self.trainer.optimizers[0].state_dict(), scheduler])


def plain(tree):
    return tree_map(lambda x: (x.dtype, x.tolist()) if isinstance(x, torch.Tensor) else x, tree)


def float16(kind=torch.amp.GradScaler, scale=256.0):
    return {"plugins": MixedPrecision("16-mixed", "cpu", kind("cpu", init_scale=scale))}


SETTINGS = {
    "plain": dict,
    "clip_norm": lambda: {"gradient_clip_val": 0.1},
    "clip_value": lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "bf16": lambda: {"precision": "bf16-mixed"},
    "float16": float16,
    "float16 of safeops": lambda: float16(amp.GradScaler),
    "pytorch_lightning": lambda: {"make": pytorch_lightning.Trainer, "model": Twin()},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


@each_setting
@pytest.mark.parametrize("kinds", ["abcde", "abxcxde", "xabcde"])
def test_as_without_the_bad(setting, kinds):
    """Bit by bit a run without callback and bad batches."""
    guarded, bare = Run(kinds, FREE, **setting()), Run("abcde", **setting())
    assert guarded.state() == bare.state()
    assert guarded.kinds == ["skipped"] * kinds.count("x")
    assert [event.step for event in guarded.events] == [i for i, k in enumerate(kinds) if k == "x"]


@pytest.mark.parametrize(("kinds", "same"), [("abcde", "abcde"), ("abcndex", "abde")])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_accumulation(kinds, same, precision):
    """What goes together is dropped together."""
    options = {"accumulate_grad_batches": 2, "precision": precision}
    guarded, bare = Run(kinds, FREE, **options), Run(same, **options)
    assert guarded.state() == bare.state()
    assert guarded.kinds == ["skipped"] * (2 if kinds != same else 0)


class Writer:
    def __init__(self):
        self.losses = []

    def add_scalar(self, name, value, step):
        self.losses += [value] if name == "guard/loss" else []

    def add_text(self, *args):
        pass


@pytest.mark.parametrize("setting", [dict, float16])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_loss(setting, many):
    """Unscaled, and the mean of what is accumulated, in the last and shorter window, too."""
    writer = Writer()
    run = Run("abcde", {"writer": writer}, accumulate_grad_batches=many, **setting())
    windows = [run.model.losses[i : i + many] for i in range(0, 5, many)]
    assert writer.losses == pytest.approx([sum(one) / len(one) for one in windows], rel=1e-3)


@pytest.mark.parametrize("trainers", [None, 0.1])
def test_clips(trainers):
    """As the Trainer, which adds 1e-6 to the norm; both together, too."""
    clipped = Run("abcde", {"max_norm": 0.1}, gradient_clip_val=trainers)
    bare = Run("abcde", gradient_clip_val=0.1)
    for one, other in zip(clipped.model.parameters(), bare.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# --- the ladder ----------------------------------------------------------------------------------

OFTEN = {"max_norm": None, "snapshot_every": 1, "policy": Policy(skips=1, rollbacks=2)}


@pytest.mark.parametrize(("often", "kinds", "same"), [(1, "abxxcxd", "abcd"), (2, "abcxxd", "abd")])
def test_roll_back(often, kinds, same):
    """The scheduler goes back, too."""
    run = Run(kinds, {**OFTEN, "snapshot_every": often})
    assert run.kinds[:2] == ["skipped", "rolled_back"]
    assert run.state() == Run(same).state()


def test_diverged():
    """fit fails with the story; the module is as it was after b, with hooks of its own."""
    model = Model()
    with pytest.raises(TrainingDiverged) as caught:
        Run("abxxxxxxx", OFTEN, model)
    kinds = [event.kind for event in caught.value.events]
    assert kinds == ["skipped", "rolled_back"] * 2 + ["skipped", "stopped"]
    assert plain(model.state_dict()) == plain(Run("ab").model.state_dict())
    assert not HOOKS & vars(model).keys()


def test_overflow():
    """The scale is lowered as often as it takes; that is not divergence, nor does the rate fall."""
    run = Run("abcdefghijklmnopqr", OFTEN, **float16(scale=2.0**30))
    assert 2 < len(run.kinds) < 18
    assert set(run.kinds) == {"overflow"}
    assert [event.loss for event in run.events] == pytest.approx(run.model.losses[: len(run.kinds)])
    assert run.model.rates[len(run.kinds)] == 0.01 > run.model.rates[len(run.kinds) + 1]


# --- beside the trainer --------------------------------------------------------------------------


def test_step_without_loss():
    """As Lightning does it."""
    with pytest.warns(UserWarning, match="returned `None`"):
        guarded, bare = Run("ab-c", FREE), Run("ab-c")
    assert guarded.state() == bare.state()
    assert (guarded.kinds, guarded.callback.guard.steps) == ([], 3)


def test_epochs():
    """They go on, and so do their schedulers."""
    run = Run("abx", {}, Model("epoch"), max_epochs=2)
    assert run.kinds == ["skipped", "skipped"]
    assert not HOOKS & vars(run.model).keys()
    assert run.model.rates == pytest.approx([0.01] * 3 + [0.009] * 3)


def test_loggers(tmp_path):
    logger = CSVLogger(tmp_path)
    Run("axbxc", {}, logger=logger, log_every_n_steps=1)
    header, *rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().split()
    place = header.split(",").index("guard/skipped")
    assert [row.split(",")[place] for row in rows] == ["1", "2"]


def test_dumped(tmp_path):
    """With its batch, or with all that were accumulated."""
    for many in (1, 2):
        options = {"checkpoint_dir": tmp_path / str(many)}
        run = Run("abcx", options, accumulate_grad_batches=many)
        dump = torch.load(run.events[0].path, weights_only=True)
        last = dump["batches"][0] if many == 1 else dump["batches"][0][-1]
        assert last[1].isnan().all()


def test_resumed(tmp_path):
    """Bad steps in a row go on being counted."""
    path = tmp_path / "last.ckpt"
    Run("abx", OFTEN).trainer.save_checkpoint(path)
    run = Run("xcd", OFTEN, ckpt_path=path, max_epochs=2)
    assert run.kinds == ["rolled_back"]


WRONG = {
    "expected automatic optimization": lambda: Run("a", {}, Manual()),
    "patiance": lambda: GuardCallback(patiance=3),
    "scaler": lambda: GuardCallback(scaler=None),
    "accumulate is the Trainer's": lambda: GuardCallback(accumulate=2),
}


@pytest.mark.parametrize(("message", "call"), WRONG.items(), ids=WRONG)
def test_wrong(message, call):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_not_installed(monkeypatch):
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, GuardCallback.__module__)
    with pytest.raises(ImportError, match="pip install lightning"):
        importlib.import_module(GuardCallback.__module__)
