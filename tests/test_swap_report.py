"""What a swap says, and what it counts on demand."""

import gc
import json

import pytest
import torch
from torch import nn

import safeops


class Entropy(nn.Module):
    def forward(self, x):
        p = torch.softmax(x, -1)
        return -(p * p.log()).sum()  # the line


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(3)
        self.head = Entropy()

    def forward(self, x):
        return self.head(self.norm(x) * torch.tensor([0.0, 1.0, 1e6]))


X = torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])


def line_of(text):
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if text in line)


def test_print_is_a_table():
    text = str(safeops.swap_(Model()))
    assert text.splitlines()[0].startswith("swap: 1 module replaced, 2 forwards under safe_mode; ")
    assert text.splitlines()[1].split() == ["module", "was", "now", "why"]
    rows = [line.split()[:3] for line in text.splitlines()]
    assert "forward of: the model (tests.test_swap_report.Model), head" in text
    assert ["norm", "torch.nn.LayerNorm", "safeops.nn.LayerNorm"] in rows
    assert repr(safeops.swap_(nn.ModuleList())) == "swap: nothing was changed"


def test_long_tables_are_cut():
    text = str(safeops.swap_(nn.Sequential(*[nn.GELU() for _ in range(60)])))
    assert "... and 20 more" in text


def test_json_holds_everything():
    report = safeops.swap_(Model(), options={"safe_log": {"eps": 1e-4}})
    read = json.loads(report.to_json())
    assert [row["name"] for row in read["changed"]] == ["", "norm", "head"]
    other = Model()
    again = safeops.swap_(other, report=read)
    assert again.options == {"safe_log": {"eps": 1e-4}}
    assert again.to_json() == report.to_json()


def test_guarded_counts_by_op_module_and_line():
    model = Model()
    report = safeops.swap_(model)
    expected = model(X)
    with report.guarded() as counts:
        assert torch.equal(model(X), expected)
        model(X)
    (row,) = counts
    assert (row.op, row.module) == ("safeops.safe_log", "head")
    assert row.source == f"{__file__}:{line_of('# the' + ' line')}"
    assert (row.calls, row.elements, row.values, row.gradients) == (2, 12, 4, 4)
    assert {call.op for call in counts.calls} >= {"safeops.softmax", "safeops.safe_log"}
    assert counts[0] is row
    assert counts.to_dict()["guarded"][0]["values"] == 4
    assert "safeops.safe_log" in str(counts)


def test_guarded_counts_gradients_alone_and_in_place_calls():
    class Roots(nn.Module):
        def forward(self, x):
            return x.sqrt(), (x * 1.0).log_(), torch.log(x.detach(), out=torch.empty(0))

    model = Roots()
    with safeops.swap_(model).guarded() as counts:
        model(torch.zeros(2, requires_grad=True))
    assert [(row.op, row.values, row.gradients) for row in counts] == [
        ("safeops.safe_sqrt", 0, 2),
        ("safeops.safe_log", 4, 2),
    ]


def test_nothing_guarded_says_so():
    model = nn.Softmax(-1)
    with safeops.swap_(model).guarded() as counts:
        model(torch.zeros(1, 2))
    assert len(counts) == 0
    assert str(counts) == "guarded nothing in 1 calls"


def test_no_call_at_all_is_said():
    model = nn.Linear(2, 2)
    with safeops.swap_(model).guarded() as counts:
        torch.zeros(1).log()
    assert "no call was taken" in str(counts)


def test_calls_outside_of_the_model_are_said_to_be():
    model = Model()
    with safeops.swap_(model).guarded() as counts, safeops.safe_mode():
        torch.zeros(1).log()
    assert [row.module for row in counts] == ["(outside the model)"]


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_counted_too():
    model = Model()
    compiled = torch.compile(model, backend="eager")
    report = safeops.swap_(compiled)
    compiled(X)
    with report.guarded() as counts:
        compiled(X)
    assert [(row.op, row.module) for row in counts] == [("safeops.safe_log", "head")]
    assert torch.equal(compiled(X), model(X))


def test_within_a_safe_mode_that_was_there_before():
    model = Model()
    report = safeops.swap_(model)
    with safeops.safe_mode(), report.guarded() as counts:
        model(X)
    assert [row.op for row in counts] == ["safeops.safe_log"]


def test_one_report_counts_at_a_time():
    model = Model()
    report = safeops.swap_(model)
    with report.guarded(), pytest.raises(RuntimeError, match="one at a time"), report.guarded():
        pass


def test_transforms_run_while_counting():
    model = Model()
    with safeops.swap_(model).guarded():
        torch.func.grad(lambda x: model(x))(X)


def test_counting_leaves_nothing_behind():
    model = Model()
    report = safeops.swap_(model)
    hooks = dict(nn.modules.module._global_forward_hooks)
    with pytest.raises(KeyError), report.guarded():
        raise KeyError
    assert dict(nn.modules.module._global_forward_hooks) == hooks
    assert safeops.swap.functions._watched is None
    with report.guarded() as counts:
        pass
    model(X)
    assert not counts.calls


def test_counting_changes_neither_state_nor_random_numbers():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), Entropy())
    report = safeops.swap_(model)
    torch.manual_seed(0)
    expected = model(X).item(), {k: v.clone() for k, v in model.state_dict().items()}
    model[0].reset_running_stats()
    torch.manual_seed(0)
    with report.guarded():
        assert model(X).item() == expected[0]
    assert all(torch.equal(v, expected[1][k]) for k, v in model.state_dict().items())


def test_a_report_without_a_model_cannot_count():
    model = Model()
    report = safeops.swap_(model)
    read = type(report).of(report.to_json())
    del model
    gc.collect()
    for one in (report, read):
        with pytest.raises(RuntimeError, match="belongs to no model"), one.guarded():
            pass
