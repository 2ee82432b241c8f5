"""Each kind of finding: a planted fault is found, named and rated; its healthy twin is quiet."""

import json
import math
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from safeops.diagnose.auditing.audit import AuditFinding, AuditReport, audit
from safeops.diagnose.auditing.findings import KINDS
from tests.audit_cases import CASES
from tests.audited import net, settings, table


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_planted_faults_are_found(case):
    found = [one for one in audit(**case.sick()).findings if one.what == case.what]
    assert case.where in [one.where for one in found], audit(**case.sick()).rows()
    (one,) = [one for one in found if one.where == case.where]
    assert one.severity == case.severity
    assert one.remedy
    assert one.how_bad


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_their_healthy_twins_are_quiet(case):
    report = audit(**case.healthy())
    assert report.findings == []
    assert report


def test_every_kind_has_a_case():
    assert {case.what for case in CASES} == set(KINDS)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (
            nn.ReLU(),
            'nn.init.kaiming_normal_(model.get_parameter("0.weight"), nonlinearity="relu")',
        ),
        (nn.Tanh(), 'gain=nn.init.calculate_gain("tanh")'),
        (nn.Identity(), 'nn.init.xavier_uniform_(model.get_parameter("0.weight")) (Xavier)'),
    ],
)
def test_the_remedy_is_the_call_for_the_nonlinearity(after, says):
    model = nn.Sequential(nn.Linear(64, 64), after, nn.Linear(64, 3))
    nn.init.normal_(model[0].weight, std=2.0)
    (finding,) = audit(model).findings
    assert says in finding.remedy
    exec(finding.remedy.partition(" (")[0], {"nn": nn, "model": model})
    assert audit(model).findings == []


def test_gains_are_root_mean_square_times_root_of_fan():
    model = net()
    gains = {gain.name: gain.gain for gain in audit(model).gains}
    assert list(gains) == ["0.weight", "3.weight", "5.weight"]
    expected = model[0].weight.double().square().mean().sqrt().item() * 4
    assert gains["0.weight"] == pytest.approx(expected)


def test_dead_share_is_counted_by_unit():
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    nn.init.constant_(model[0].bias, 100.0)
    nn.init.constant_(model[0].bias[:3], -100.0)
    (activation,) = audit(model, batch=table()).activations
    assert activation == ("1", "relu", 3 / 8, 8, 32)


def test_channels_of_one_dimensional_convolutions():
    model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU())
    nn.init.constant_(model[0].bias[:3], -100.0)
    (activation,) = audit(model, batch=torch.randn(8, 4, 20)).activations
    assert activation == ("1", "relu", 0.5, 6, 8 * 18)


def test_features_of_sequences():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    nn.init.constant_(model[0].bias[:3], -100.0)
    (activation,) = audit(model, batch=torch.randn(8, 20, 4)).activations
    assert activation == ("1", "relu", 0.5, 6, 8 * 20)


# --- the report ----------------------------------------------------------------------------------


def sick():
    given = settings(lr=1.0)
    with torch.no_grad():
        given["model"][3].weight[0, 0] = math.nan
        given["model"][0].weight.mul_(20)
    return audit(**given, batch=table())


def test_errors_come_first_and_make_it_false():
    report = sick()
    severities = [one.severity for one in report.findings]
    assert severities == sorted(severities)
    assert set(severities) == {"error", "warning"}
    assert not report
    assert report.summary() == "audit: 1 error, 2 warnings (10 tensors read)"
    warned = AuditReport([one for one in report.findings if one.severity == "warning"])
    assert warned


def test_text_has_every_finding():
    text = str(sick())
    for finding in sick().findings:
        assert finding.where in text
        assert finding.what.split()[0] in text


def test_json_has_everything():
    read = json.loads(json.dumps(sick().to_dict()))
    assert not read["ok"]
    assert [AuditFinding(**one) for one in read["findings"]] == sick().findings
    assert {gain["name"] for gain in read["gains"]} == {"0.weight", "5.weight"}
    assert {one["where"] for one in read["activations"]} == {"2", "4"}


def test_page_has_both_figures(tmp_path):
    pytest.importorskip("matplotlib")
    sick().to_html(tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text()
    assert text.count("<figure>") == 2
    assert "Gain rms" in text
    assert "Dead or saturated" in text


def test_figures_of_many_layers_show_the_worst():
    pytest.importorskip("matplotlib")
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(60)])
    nn.init.normal_(model[50].weight, std=9.0)
    ((caption, figure),) = audit(model).figures()
    assert "40 of 60 are shown" in caption
    assert "50.weight" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_no_layers_no_figures():
    assert audit(nn.ReLU()).figures() == []


def blocks(count, std):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            parts = (nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(count))
            self.blocks = nn.ModuleList(parts)

    torch.manual_seed(0)
    model = Blocks()
    for block in model.blocks:
        nn.init.normal_(block[0].weight, std=std)
    return model


def test_numbered_layers_are_one_row_with_the_worst():
    large, small = blocks(20, 2.0), blocks(20, 1e-4)
    nn.init.normal_(large.blocks[7][0].weight, std=3.0)
    nn.init.normal_(small.blocks[9][0].weight, std=5e-5)
    for model, worst in (large, 7), (small, 9):
        report = audit(model)
        assert len(report.findings) == 20
        ((_, where, _, how_bad, remedy),) = report.rows()
        name = f"blocks.{worst}.0.weight"
        assert where == f"blocks.*.*.weight, 20 layers; worst {name}"
        (finding,) = [one for one in report.findings if one.where == name]
        assert how_bad == finding.how_bad
        assert remedy == f"{finding.remedy}; likewise the 19 others"


def test_two_layers_and_names_with_numbers_in_them_are_rows_of_their_own():
    assert len(audit(blocks(2, 2.0)).rows()) == 2
    model = nn.ModuleDict({f"fc{i}": nn.Linear(32, 32) for i in range(4)})
    for layer in model.values():
        nn.init.normal_(layer.weight, std=2.0)
    assert [row[1] for row in audit(model).rows()] == [f"fc{i}.weight" for i in range(4)]


def test_stale_gradients_do_not_hide_what_the_forward_shows():
    class Log(nn.Module):
        def forward(self, x):
            return x.log()

    model = nn.Sequential(nn.Linear(4, 4), Log())
    model[0].weight.grad = torch.full((4, 4), math.nan)
    whats = [one.what for one in audit(model, batch=torch.randn(8, 4)).findings]
    assert whats == ["stale gradient", "activation"]
    assert model[0].weight.grad.isnan().all()
    exec(
        "optimizer.zero_grad(set_to_none=True)", {"optimizer": torch.optim.SGD(model.parameters())}
    )
    assert [one.what for one in audit(model).findings] == []


def test_growing_activations_name_the_worst_layer():
    model = nn.Sequential(*[nn.Linear(32, 32, bias=False) for _ in range(10)])
    for layer in model:
        nn.init.orthogonal_(layer.weight, 5.0)
    (finding,) = audit(model, batch=torch.randn(16, 32)).findings
    assert finding.where == "4"
    assert re.search(r"5 more too, worst 9 with 9\.\d+e\+06", finding.how_bad)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: settings(lr=1e3), "set a smaller one"),
        (lambda: settings(lr=-1e3), "set a positive one"),
    ],
)
def test_the_remedy_of_a_rate_fits_it(given, says):
    (finding,) = audit(**given()).findings
    assert finding.remedy.startswith(says)


def test_texts_say_what_is_zero_and_what_is_usual():
    chain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    for layer in chain[:2]:
        nn.init.zeros_(layer.weight)
    nn.init.zeros_(chain[0].bias)
    first, second = audit(chain).findings
    assert first.how_bad.startswith("all weights of this layer and of the next are 0")
    assert second.how_bad == "all its weights are 0: the layers before it get a gradient of 0"
    (scale,) = audit(nn.Identity(), batch=torch.rand(8, 3, 4) * 255).findings
    assert scale.how_bad.endswith("; with mean 0 and standard deviation 1 it is 1")


# --- bad input -----------------------------------------------------------------------------------


DATASET = TensorDataset(torch.zeros(4, 2))
LOADER = DataLoader(DATASET)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"model": torch.zeros(2)}, TypeError, "expected a torch.nn.Module, got Tensor"),
        ({"model": None}, TypeError, "got NoneType"),
        ({"model": nn.ReLU(), "optimizer": torch.zeros(2)}, TypeError, "batch=batch"),
        ({"model": nn.ReLU(), "batch": 1, "forward": 3}, TypeError, "forward"),
        ({"model": nn.ReLU(), "batch": LOADER}, TypeError, r"DataLoader: .*next\(iter\(loader\)\)"),
        ({"model": nn.ReLU(), "batch": iter(LOADER)}, TypeError, "give one batch"),
        ({"model": nn.ReLU(), "batch": DATASET}, TypeError, r"iter\(DataLoader\(dataset, 32\)"),
        ({"model": nn.ReLU(), "forward": print}, ValueError, "needs a batch"),
    ],
)
def test_bad_arguments_say_what_was_expected(given, error, says):
    with pytest.raises(error, match=says):
        audit(**given)
