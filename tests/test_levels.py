"""Every CPU level gives the same bits. Each runs in a fresh process; run as a module, this file
prints the digests of one."""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache

import pytest
import torch

from safeops import _extension
from safeops.testing import ulp_distance
from tests.cases import DTYPES, OPS
from tests.row_cases import ROW_OPS
from tests.samples import label, sweep, upstreams

LEVELS = ("avx2", "avx512")


def digest(tensors):
    """The payload and the sign of a NaN are left open by IEEE 754; all other bits count."""
    bits = hashlib.sha256()
    for tensor in tensors:
        plain = torch.where(tensor.isnan(), torch.nan, tensor).contiguous()
        bits.update(plain.view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def results(op, dtype, options):
    inputs = [tensor.requires_grad_() for tensor in sweep(op, dtype, 5_000)]
    value = op.function(*inputs, **options)
    wild = upstreams(value.detach())[2]
    return value.detach(), *torch.autograd.grad(value, inputs, wild)


def row_results(op, dtype, shape, masked):
    """Value and gradient along every dim."""
    x, mask = (torch.randn(shape) * 3).to(dtype), torch.rand(shape) < 0.8
    x.view(-1)[::1009] = -torch.inf
    return [t for dim in range(len(shape)) for t in row_pair(op, x, dim, mask if masked else None)]


def row_pair(op, x, dim, mask):
    x = x.detach().requires_grad_()
    value = op.function(x, dim, mask=mask)
    return value.detach(), *torch.autograd.grad(value, x, torch.randn(value.shape).to(x.dtype))


# around vector widths, block edges and the lengths at which rows are split
ROW_SHAPES = [(37, 5), (3, 64, 17), (2, 300, 33), (3, 2049), (20_001, 2)]


def row_digests():
    torch.manual_seed(0)
    return {
        f"{op.name} {label(dtype)} {shape} {masked}": digest(row_results(op, dtype, shape, masked))
        for op in ROW_OPS
        for dtype in DTYPES
        for shape in ROW_SHAPES
        for masked in (False, True)
    }


@cache
def digests():
    elementwise = {
        f"{op.name} {label(dtype)} {options}": digest(results(op, dtype, options))
        for op in OPS
        for dtype in DTYPES
        for options in op.options
    }
    return elementwise | row_digests()


def facts():
    level = _extension.module and _extension.module.level()
    return {"reason": _extension.reason, "level": level, "digests": level and digests()}


@cache
def in_a_fresh_process(capability):
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "SAFEOPS_KERNELS": "auto"}
    command = [sys.executable, "-m", "tests.test_levels"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def skip_what_the_machine_lacks(level):
    if level not in _extension.module.levels():
        pytest.skip(f"{level} was not compiled: this is another architecture")
    best = torch.backends.cpu.get_cpu_capability().lower()
    if best not in LEVELS or LEVELS.index(best) < LEVELS.index(level):
        pytest.skip(f"this CPU has no {level}: torch reports {best}")


@pytest.mark.parametrize("level", LEVELS)
def test_level_gives_the_same_bits(kernel, level):
    skip_what_the_machine_lacks(level)
    fresh = in_a_fresh_process(level)
    assert fresh["reason"] is None
    assert fresh["level"] == level
    here = digests()
    assert [name for name in here if fresh["digests"][name] != here[name]] == []


def test_no_level_gives_a_reason(kernel):
    if not set(LEVELS) & set(_extension.module.levels()):
        pytest.skip("this architecture has one level, for every CPU")
    fresh = in_a_fresh_process("default")
    assert fresh["level"] is None
    assert "avx2" in fresh["reason"]
    assert "DEFAULT" in fresh["reason"].upper()


def test_a_digest_sees_one_bit():
    x = torch.linspace(1, 2, 1000)
    y = x.clone()
    y[777] = torch.nextafter(y[777], torch.tensor(3.0))
    assert ulp_distance(y, x).max() == 1
    assert digest([x]) != digest([y])


def test_level_can_be_chosen(kernel):
    """In one process too: the table is switched, not the library."""
    module, before = _extension.module, _extension.module.level()
    try:
        for level in module.levels():
            skip_what_the_machine_lacks(level) if level in LEVELS else None
            module.use_level(level)
            assert module.level() == level
        with pytest.raises(ValueError, match="mmx"):
            module.use_level("mmx")
    finally:
        module.use_level(before)


if __name__ == "__main__":
    print(json.dumps(facts()))
