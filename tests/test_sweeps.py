"""Every input of the exhaustive sweeps stays within its bound; a thousandth of them every run."""

import pytest
import torch

from tests.samples import label
from tests.sweeps import SWEEPS, Row, Worst, sweep_exponentials

each_sweep = pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.op.name)


def assert_within(rows):
    assert [str(row) for row in rows if not row.worst.error <= row.bound] == []


@each_sweep
def test_a_thousandth(route, sweep):
    with route.runs(sweep.op.raw, f"{sweep.op.raw}_backward"):
        rows = sweep.run(stride=1009)
    for row in rows:
        row.bound += 0 if route.name == "kernel" else 0.5
    assert min(row.tried for row in rows) > 3_900_000
    assert_within(rows)


@pytest.mark.slow
@each_sweep
def test_every_input(kernel, sweep, capsys):
    rows = sweep.run()
    with capsys.disabled():
        print(*rows, sep="\n")
    assert rows[0].tried == 2**32
    assert_within(rows)


def test_a_thousandth_of_exp(kernel):
    row = sweep_exponentials(stride=1009)
    assert row.tried > 3_100_000
    assert_within([row])


@pytest.mark.slow
def test_every_exp(kernel, capsys):
    row = sweep_exponentials()
    with capsys.disabled():
        print(row)
    assert row.tried == 2**32 - every_pattern_above(19.0)
    assert_within([row])


def every_pattern_above(number):
    """How many float32 numbers are larger, infinity included."""
    infinity, bound = torch.tensor([torch.inf, number]).view(torch.int32).tolist()
    return infinity - bound


def test_a_wrong_element_is_found():
    """One NaN or one large error in a chunk is the worst there is."""
    for bad in (3.0, torch.inf, torch.nan):
        worst, errors = Worst(), torch.zeros(100, dtype=torch.float64)
        errors[42] = bad
        worst.see(errors, [torch.arange(100.0)])
        assert worst.at == (42.0,)
        with pytest.raises(AssertionError):
            assert_within([Row("f", label(torch.float32), 2.0, 100, worst)])


@pytest.mark.parametrize("sweep", SWEEPS[:1], ids=label)
def test_the_sweep_itself_sees_a_wrong_formula(formulas, monkeypatch, sweep):
    import safeops.ops.log as log

    monkeypatch.setattr(log._log.formulas, "value", lambda x, *constants: x.log() * (1 + 1e-6))
    with pytest.raises(AssertionError, match="safe_log"):
        assert_within(sweep.run(stride=100_003))
