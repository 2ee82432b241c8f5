"""Every example runs, shows torch failing, and shows safeops not failing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHOWS = {
    "masked_mean": (
        "torch                means [2.5, 6.0, nan]  gradient nan",
        "torch, then where    means [2.5, 6.0, 0.0]  gradient nan",
        "safe_div             means [2.5, 6.0, 0.0]  gradient 8.5",
    ),
    "cross_entropy": (
        "torch.log          cross-entropy inf  gradient [nan, nan, nan]",
        "safe_log           cross-entropy 103.2789  gradient [0.0, 0.0, 0.0]",
        "torch.log          KL nan",
        "safe_log           KL 0.3466",
        'extend="clamp"     x went from -0.5 to -0.5000',
        'extend="linear"    x went from -0.5 to 0.99',
    ),
    "pairwise_distance": (
        "torch.sqrt   equal points 0.0000 apart; mean distance after training nan",
        "x + 1e-8     equal points 0.0001 apart; mean distance after training 10.0000",
        "safe_sqrt    equal points 0.0000 apart; mean distance after training 10.0000",
    ),
    "masked_attention": (
        "torch, -inf added    rows sum to [1.0, 1.0, nan, nan]  gradient nan",
        "then nan_to_num      rows sum to [1.0, 1.0, 0.0, 0.0]  gradient nan",
        "softmax, mask=       rows sum to [1.0, 1.0, 0.0, 0.0]  gradient 0.1966",
    ),
    "guard_a_run": (
        "64 steps, 63 good, 1 skipped",
        "bad input: addmm (forward) in 0, step 20",
    ),
    "gradient_clipping": (
        "torch    after one bad batch: loss nan, largest weight nan",
        "safeops  after one bad batch: loss 0.",
        "torch    of four 1e20: norm inf, clipped to [0.0, 0.0, 0.0, 0.0]",
        "safeops  of four 1e20: norm 2e+20, clipped to [0.5, 0.5, 0.5, 0.5]",
        "dropped, norm 2.34521, factor 0.426401; 1 of 2 tensors not finite: 1 nan, 1 inf",
    ),
    "swap_a_model": (
        "torch      loss after training nan",
        "swapped    loss after training 0.",
        "guarded    safeops.softmax at line 20: 5 values, 5 gradients",
        "guarded    safeops.safe_log at line 21: 125 values, 125 gradients",
        "guarded    safeops.safe_div at line 23: 8 values, ",
    ),
    "find_the_nan": (
        "found   div (forward) in step 31: division by zero",
        "line    18: return ((sales / clicks - expected / clicks) ** 2).mean()",
        "result  1 nan of 16, first at [5]",
        "remedy  safeops.safe_div in its place, or safeops.swap_(model)",
        "audit   audit: 5 errors",
    ),
    "half_precision": (
        "x / norm with torch         [0.0, 0.0, 0.0]",
        "x / norm with safeops       [1.1728515625, 1.5634765625, 0.0]",
        "finite_clip of NaN, inf, 1  [nan, 65504.0, 1.0]",
        "the same with nan=0         [0.0, 65504.0, 1.0]",
    ),
}


def test_every_example_is_listed():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_example(name):
    command = [sys.executable, "-W", "error", "-c"]
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({name + '.py'!r})"
    ran = subprocess.run(
        [*command, code], cwd=ROOT / "examples", capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert [line for line in SHOWS[name] if line not in ran.stdout] == [], ran.stdout
