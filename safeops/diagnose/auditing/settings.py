"""Settings: numbers that an optimizer or a normalisation cannot work with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .findings import AuditFinding, error, few, warning

# The largest sensible learning rate: of optimizers whose step has about the size of the rate,
# and of others, whose step has that of the gradient times the rate.
NORMALISED = ("Adam", "NAdam", "RAdam", "Lion", "RMSprop", "Rprop", "Adamax", "SparseAdam")
LARGEST = {True: 0.1, False: 10.0}


def setting_findings(model: nn.Module, optimizer: Any) -> list[AuditFinding]:
    findings = [*_norms(model), *_nothing_to_train(model)]
    if optimizer is not None:
        for place, group in enumerate(optimizer.param_groups):
            findings += _of_group(f"param_groups[{place}]", group, optimizer)
        findings += _membership(model, optimizer)
        findings += _half_weights(model, optimizer)
    return findings


# --- groups ------------------------------------------------------------------------------------


def _of_group(where: str, group: dict[str, Any], optimizer: Any) -> Iterator[AuditFinding]:
    yield from _learning_rate(f'{where}["lr"]', group, optimizer)
    for name, value in _decays(group):
        if not 0 <= value < 1:
            how_bad = f"{name} {value:g}, expected 0 <= {name} < 1"
            yield error(f'{where}["{name}"]', "setting", value, how_bad, "betas=(0.9, 0.999)")
    decay = number(group.get("weight_decay"))
    if decay is not None and not 0 <= decay < math.inf:
        how_bad = f"weight decay {decay:g}: weights grow in every step"
        yield error(f'{where}["weight_decay"]', "setting", decay, how_bad, "weight_decay >= 0")
    yield from _eps(f'{where}["eps"]', group)


def number(value: Any) -> float | None:
    """Of a float or a tensor with one element."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.is_meta else None
    return float(value) if isinstance(value, (int, float)) else None


def _learning_rate(where: str, group: dict[str, Any], optimizer: Any) -> Iterator[AuditFinding]:
    rate = number(group.get("lr"))
    if rate is None:
        return
    kind = type(optimizer).__name__
    largest = LARGEST[kind.startswith(NORMALISED)]
    usual = "lr=1e-3 is Adam's default, 1e-2 to 1e-1 is usual with SGD"
    remedy = f"set a positive one: {usual}"
    if not 0 <= rate < math.inf:
        yield error(where, "setting", rate, f"learning rate {rate:g}", remedy)
    elif rate == 0 and not number(group.get("initial_lr")):  # a scheduler's warm-up begins at 0
        yield warning(where, "setting", rate, "learning rate 0: nothing is learnt", remedy)
    elif rate > largest:
        how_bad = f"learning rate {rate:g} is huge for {kind}; above {largest:g} few models train"
        yield warning(where, "setting", rate, how_bad, f"set a smaller one: {usual}")


def _decays(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    betas = group.get("betas")
    given = [("betas", beta) for beta in betas] if isinstance(betas, (tuple, list)) else []
    for name, value in [*given, ("momentum", group.get("momentum"))]:
        if (converted := number(value)) is not None:
            yield name, converted


def _eps(where: str, group: dict[str, Any]) -> Iterator[AuditFinding]:
    """0 in the dtype in which it is added; fused optimizers add it in float32."""
    eps = number(group.get("eps"))
    if eps is None:
        return
    dtypes = {p.dtype for p in group["params"] if p.is_floating_point()}
    vanished = [dtype for dtype in dtypes if vanishes(eps, dtype) and not group.get("fused")]
    if not 0 <= eps < math.inf:
        yield error(where, "eps", eps, f"eps {eps:g}", "eps=1e-8")
    elif eps == 0:
        how_bad = "eps 0: a gradient of 0 is divided by 0"
        yield warning(where, "eps", eps, how_bad, "eps=1e-8, 1e-4 for float16 parameters")
    elif vanished:
        how_bad = f"eps {eps:g} is 0 in {_named(vanished[0])}: a gradient of 0 is divided by 0"
        remedy = "eps=1e-4, or keep the parameters in float32 and use torch.autocast"
        yield error(where, "eps", eps, how_bad, remedy)


def vanishes(eps: float, dtype: torch.dtype) -> bool:
    return dtype.itemsize > 1 and not float(torch.tensor(eps, dtype=torch.float64).to(dtype))


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- which parameters --------------------------------------------------------------------------


def _nothing_to_train(model: nn.Module) -> Iterator[AuditFinding]:
    parameters = list(model.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        how_bad = (
            f"none of the {len(parameters)} parameters requires a gradient: no step changes any"
        )
        remedy = "requires_grad_(True) of the modules that shall be trained"
        yield warning("the model", "nothing to train", len(parameters), how_bad, remedy)


def _membership(model: nn.Module, optimizer: Any) -> Iterator[AuditFinding]:
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    every = {id(p) for p in model.parameters()}
    missing = [name for key, name in named.items() if key not in stepped]
    strange = len(stepped - every)
    if missing:
        how_bad = f"{len(missing)} of {len(named)} trainable parameters are not in the optimizer"
        remedy = "optimizer.add_param_group(...), or requires_grad_(False) if that is meant"
        yield warning(few(missing), "not optimised", len(missing), how_bad, remedy)
    if strange:
        none = not stepped & every
        how_bad = f"{strange} of {len(stepped)} parameters of the optimizer are not in the model"
        remedy = "make the optimizer after the model is complete: copies and .to() may replace them"
        make = error if none else warning
        yield make("param_groups", "not in the model", strange, how_bad, remedy)


def _half_weights(model: nn.Module, optimizer: Any) -> Iterator[AuditFinding]:
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    half = [
        name
        for name, p in model.named_parameters()
        if p.dtype is torch.float16 and p.requires_grad and id(p) in stepped
    ]
    if half:
        how_bad = f"{len(half)} parameters: a step below 0.05 % of a weight rounds to nothing"
        remedy = (
            "model.float(), forward under torch.autocast(device, torch.float16), and "
            "safeops.GradScaler"
        )
        yield warning(few(half), "float16 weights", len(half), how_bad, remedy)


# --- normalisations ----------------------------------------------------------------------------


def _norms(model: nn.Module) -> Iterator[AuditFinding]:
    """eps 0, or 0 in the parameters' dtype: torch's kernels take it in float32, a formula in
    the tensors' own dtype, under a compiler too, does not."""
    for name, module in model.named_modules():
        if "Norm" in type(module).__name__ and (eps := _eps_of(module)) is not None:
            dtypes = [p.dtype for p in module.parameters(False) if p.is_floating_point()]
            vanished = [dtype for dtype in dtypes if vanishes(eps, dtype)]
            if eps <= 0 or vanished or math.isnan(eps):
                in_dtype = f" is 0 in {_named(vanished[0])}" if eps > 0 else ""
                how_bad = f"eps {eps:g}{in_dtype}: a constant row or channel is divided by 0"
                place = f"{name or 'the model'}.eps"
                yield warning(place, "eps", eps, how_bad, "eps=1e-5 (1e-6 in float32)")


def _eps_of(module: nn.Module) -> float | None:
    return number(getattr(module, "eps", getattr(module, "variance_epsilon", None)))
