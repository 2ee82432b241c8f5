"""Initialisation: does a layer keep the size of a signal?

Of x with independent elements of mean square 1, x W^T has a mean square of rms(W)^2 fan_in; the
gain of a layer is therefore rms(W) sqrt(fan_in), 1 under Xavier and sqrt(2) under He
initialisation. Healthy initialisations lie far apart all the same: 0.58 is torch's default, 0.02
of a narrow transformer's std of 0.02, 0.01 of a policy's last layer, 5 of a wide classifier's std
of 0.1. So do trained ones. What is outside [LOW, HIGH] is none of them.

Source: Glorot and Bengio, 2010, "Understanding the difficulty of training deep feedforward neural
networks"; He et al., 2015, "Delving deep into rectifiers".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..._ranks import is_sharded
from .findings import AuditFinding, Read, error, rms, unreadable, warning

LOW, HIGH = 1 / 128, 6.5
EMBEDDINGS = 1e-5, 100.0  # of rms: tables of millions of rows start small, trained ones grow
ENOUGH = 8  # elements: the rms of fewer says little
LAYERS = (
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)
CONTAINERS = (nn.ModuleList, nn.ModuleDict)

# What torch.nn.init.calculate_gain knows, and what is close enough to it.
NONLINEARITIES: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("relu", (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.Softplus, nn.Hardswish)),
    ("leaky_relu", (nn.LeakyReLU, nn.PReLU, nn.RReLU)),
    ("tanh", (nn.Tanh, nn.Hardtanh, nn.Softsign)),
    ("sigmoid", (nn.Sigmoid, nn.Hardsigmoid)),
    ("selu", (nn.SELU,)),
)


class Layer(NamedTuple):
    """A weight matrix with what is around it. `fans`: a healthy gain by one of them will do;
    none for a table of embeddings."""

    name: str
    weight: Tensor
    fans: tuple[float, ...]
    module: nn.Module
    parent: nn.Module


class Gain(NamedTuple):
    """rms(W) sqrt(fan) of a layer, by that fan for which it is closest to 1, and the ends of what
    is healthy. A table of embeddings has no fan, 0, and its gain is rms(W)."""

    name: str
    fan: float
    gain: float
    low: float
    high: float


def layers(model: nn.Module) -> list[Layer]:
    """Each weight once, under the name that named_parameters() has for it; of tied ones that of
    an embedding if it is one. Weights that a parametrization computes are left out."""
    found: dict[int, Layer] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        parent = modules.get(path.rpartition(".")[0], model)
        for name, fans in fans_of(module).items():
            weight = module._parameters[name]
            if weight is not None and weight.numel() and (id(weight) not in found or not fans):
                found[id(weight)] = Layer(names[id(weight)], weight, fans, module, parent)
    return list(found.values())


def fans_of(module: nn.Module) -> dict[str, tuple[float, ...]]:
    """The fans by which each of its matrices may be judged."""
    if not isinstance(module, LAYERS) and not _is_conv1d(module):
        return {}
    parameters = module._parameters.items()
    return {
        name: _fans(module, weight)
        for name, weight in parameters
        if weight is not None and _is_matrix(name, weight)
    }


def _is_matrix(name: str, weight: Tensor) -> bool:
    return "weight" in name and not unreadable(weight) and weight.dim() > 1


def _is_conv1d(module: nn.Module) -> bool:
    """That of transformers: a Linear whose weight is stored transposed."""
    return type(module).__name__ == "Conv1D"


def _fans(module: nn.Module, weight: Tensor) -> tuple[float, ...]:
    """Convolutions may be initialised by either fan; torch's recurrent cells are by their size."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return ()
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return float(weight.shape[1]), float(module.hidden_size)
    if isinstance(module, nn.modules.conv._ConvNd):
        window = math.prod(weight.shape[2:])
        return float(weight.shape[1] * window), float(weight.shape[0] * window)
    return (float(weight.shape[0 if _is_conv1d(module) else 1]),)


def gain_of(layer: Layer, size: float, slack: float) -> Gain:
    """Of a weight whose root mean square is `size`."""
    low, high = (LOW, HIGH) if layer.fans else EMBEDDINGS
    gains = [(fan, size * math.sqrt(fan)) for fan in layer.fans] or [(0.0, size)]
    fan, gain = min(gains, key=lambda pair: _distance(pair[1]))
    return Gain(layer.name, fan, gain, low / slack, high * slack)


def _distance(gain: float) -> float:
    return abs(math.log(gain)) if 0 < gain < math.inf else math.inf


def weight_findings(
    model: nn.Module, found: Read, trained: bool
) -> tuple[list[AuditFinding], list[Gain]]:
    """And the gains, in the order of the model. Of a model known to be `trained` every layer may
    have grown or shrunk tenfold: a last layer does that sees its classes apart."""
    known = [layer for layer in layers(model) if layer.name in found.rows]
    judged = [layer for layer in known if not found.rows[layer.name].bad]
    zero = {layer.name for layer in judged if not found.rows[layer.name].largest}
    slack = 10.0 if trained else 1.0
    gains = [gain_of(layer, rms(found.rows[layer.name]), slack) for layer in judged]
    findings: list[AuditFinding] = []
    for layer, gain in zip(judged, gains, strict=True):
        if layer.name in zero:
            findings += _if_zero(layer, judged, zero)
        elif _are_alike(layer):
            findings.append(_alike(layer))
        else:
            findings += _by_gain(layer, gain)
    return findings, gains


def _by_gain(layer: Layer, gain: Gain) -> Iterator[AuditFinding]:
    too_small = gain.gain < gain.low and layer.weight.numel() >= ENOUGH
    if not too_small and gain.gain <= gain.high:
        return
    what = "weights too small" if too_small else "weights too large"
    name = "gain rms·sqrt(fan)" if layer.fans else "root mean square"
    how_bad = f"{name} {gain.gain:.3g}, healthy is {gain.low:.2g} to {gain.high:.3g}"
    far = gain.gain < gain.low / 10 or gain.gain > gain.high * 10
    make = error if far and layer.fans else warning
    yield make(layer.name, what, gain.gain, how_bad, initialise(layer))


def initialise(layer: Layer) -> str:
    """He for what a rectifier follows, else Xavier with the gain of what does."""
    weight = f'model.get_parameter("{layer.name}")'
    if not layer.fans:
        return f"nn.init.normal_({weight}, std=0.02)"
    kind = next_nonlinearity(layer)
    if kind in ("relu", "leaky_relu"):
        return f'nn.init.kaiming_normal_({weight}, nonlinearity="{kind}") (He)'
    gain = f', gain=nn.init.calculate_gain("{kind}")' if kind != "linear" else ""
    return f"nn.init.xavier_uniform_({weight}{gain}) (Xavier)"


def next_nonlinearity(layer: Layer) -> str:
    """That of the modules after it, up to the next layer."""
    for module in _after(layer):
        for name, classes in NONLINEARITIES:
            if isinstance(module, classes):
                return name
        if fans_of(module):
            break
    return "linear"


def _after(layer: Layer) -> list[nn.Module]:
    siblings = list(layer.parent.children())
    places = [place for place, module in enumerate(siblings) if module is layer.module]
    return siblings[places[0] + 1 :] if places else []


# --- matrices without any difference in them ---------------------------------------------------


def _are_alike(layer: Layer) -> bool:
    """Whether units have the same weights and may learn: they get the same gradient for ever. A
    convolution in groups has units of different inputs."""
    weight = layer.weight
    grouped = getattr(layer.module, "groups", 1) > 1 or is_sharded(weight)
    if not layer.fans or grouped or not weight.requires_grad:
        return False
    if weight.layout is not torch.strided or min(weight.shape[:2]) < 2 or weight.numel() < ENOUGH:
        return False
    return bool((weight[:2] == weight[:1]).all()) and bool((weight == weight[:1]).all())


def _alike(layer: Layer) -> AuditFinding:
    units = layer.weight.shape[0]
    how_bad = f"{units} units with the same weights get the same gradient"
    return error(layer.name, "alike", units, how_bad, initialise(layer))


def _if_zero(layer: Layer, judged: list[Layer], zero: set[str]) -> Iterator[AuditFinding]:
    """A last layer that starts at 0, of the model or of a branch, is deliberate; two in a chain
    hold each other at 0."""
    after = [module for module in _after(layer) if fans_of(module)]
    trained = layer.fans and layer.weight.requires_grad
    if not trained or not after or isinstance(layer.parent, CONTAINERS):
        return
    chain, biased = isinstance(layer.parent, nn.Sequential), _has_bias(layer.module)
    also = any(other.name in zero and other.module is after[0] for other in judged)
    if chain and also and not biased:
        how_bad = (
            "all weights of this layer and of the next are 0: so are their gradients, for ever"
        )
        yield error(layer.name, "zero", 1, how_bad, initialise(layer))
    elif chain or not biased:
        how_bad = "all its weights are 0: the layers before it get a gradient of 0"
        yield warning(layer.name, "zero", 1, how_bad, initialise(layer))


def _has_bias(module: nn.Module) -> bool:
    """One that is not 0 says that the zeros are meant."""
    bias = module._parameters.get("bias")
    return bias is not None and not unreadable(bias) and bool(bias.detach().any())
