"""Each kind of finding: a planted fault is found, named and rated; its healthy twin is quiet."""

import json
import math

import pytest
import torch
from torch import nn

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


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"model": torch.zeros(2)}, TypeError, "expected a torch.nn.Module, got Tensor"),
        ({"model": None}, TypeError, "got NoneType"),
        ({"model": nn.ReLU(), "optimizer": torch.zeros(2)}, TypeError, "batch=batch"),
        ({"model": nn.ReLU(), "batch": 1, "forward": 3}, TypeError, "forward"),
        ({"model": nn.ReLU(), "forward": print}, ValueError, "needs a batch"),
    ],
)
def test_bad_arguments_say_what_was_expected(given, error, says):
    with pytest.raises(error, match=says):
        audit(**given)
