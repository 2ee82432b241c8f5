"""What the doctor says of kernels and of CUDA, on machines of every kind."""

import warnings

import pytest
import torch

from safeops import _extension, _facts, _route, doctor


class Module:
    """An extension that was built with this CUDA, or without."""

    def __init__(self, cuda=None):
        self.info = {"torch": "2.14.1"} | (
            {"cuda": cuda, "compute capability from": "8.0"} if cuda else {}
        )

    def build_info(self):
        return self.info


@pytest.fixture
def machine(monkeypatch):
    """Pretends an extension, the devices of its kernels, and the GPU that torch sees."""

    def pretend(module, devices, gpu):
        monkeypatch.setattr(_extension, "module", module)
        monkeypatch.setattr(_extension, "devices", devices, raising=False)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)

    return pretend


ADVICE = (
    ": CUDA tensors take the torch formulas. In the source folder, with nvcc, "
    "'SAFEOPS_BUILD=cuda pip install --no-build-isolation .' builds the kernels"
)


@pytest.mark.parametrize(
    ("module", "devices", "gpu", "says"),
    [
        (None, (), None, "no kernels (CPU only); torch sees no GPU for CUDA"),
        (Module(), ("cpu",), None, "no kernels (CPU only); torch sees no GPU for CUDA"),
        (Module(), ("cpu",), "H100", f"no kernels (CPU only); torch sees H100{ADVICE}"),
        (None, (), "H100", f"no kernels (CPU only); torch sees H100{ADVICE}"),
        (Module("13.0"), ("cpu", "cuda"), "H100", "kernels for CUDA 13.0; torch sees H100"),
        (
            Module("13.0"),
            ("cpu", "cuda"),
            None,
            "kernels for CUDA 13.0; torch sees no GPU for CUDA",
        ),
    ],
)
def test_cuda(module, devices, gpu, says, machine):
    machine(module, devices, gpu)
    assert _facts.cuda() == says


def test_a_gpu_of_another_maker_needs_no_cuda(machine, monkeypatch):
    machine(Module(), ("cpu",), "MI300")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert _facts.cuda() == "no kernels (CPU only); torch sees no GPU for CUDA"


def test_a_driver_that_is_too_old_is_no_error(machine, monkeypatch):
    machine(Module(), ("cpu",), None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: warnings.warn("too old", stacklevel=1))
    assert _facts.cuda().endswith("torch sees no GPU for CUDA")


def test_every_fact_is_a_line_of_the_doctor():
    facts = _facts.versions()
    assert facts["CUDA"] == _facts.cuda()
    assert {f"built with: {key}" for key in _facts.built_with()} <= facts.keys()


@pytest.mark.parametrize("has", [(7, 5), (8, 0), (9, 0)])
def test_a_gpu_that_is_too_old_for_the_kernels(has, machine, monkeypatch):
    machine(Module("13.0"), ("cpu", "cuda"), "GeForce")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: has)
    reason = _route._card_obstacle.__wrapped__(torch.device("cuda", 0))
    if has >= (8, 0):
        assert reason is None
    else:
        assert "capability 8.0 and newer, and cuda:0 has 7.5: TORCH_CUDA_ARCH_LIST=7.5" in reason


def test_the_doctor_tests_the_gpu_too(monkeypatch, capsys):
    found = {"cpu": {"softmax": []}, "cuda": {"softmax": ["softmax is wrong"]}}
    monkeypatch.setattr(doctor, "gpu", lambda: "H100")
    monkeypatch.setattr(doctor, "self_test", found.__getitem__)
    assert doctor.main() == 1
    shown = capsys.readouterr().out
    assert "op on cpu" in shown
    assert "op on cuda" in shown
    assert "softmax is wrong" in shown
