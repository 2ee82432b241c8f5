"""Before training: are weights, batch and settings such that it can work?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset

from ..._arguments import check_model
from .._report import Report
from .activations import MOST, Activation
from .batch import arrays, batch_findings, leaves
from .findings import SEVERITIES, AuditFinding, grouped
from .forward import Seen, watched
from .passing import Forward, passed
from .settings import setting_findings
from .values import value_findings
from .weights import Gain, weight_findings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AuditFinding", "AuditReport", "audit"]


def audit(
    model: nn.Module,
    optimizer: Any = None,
    batch: Any = None,
    *,
    forward: Forward | None = None,
) -> AuditReport:
    """Look at a model, its optimizer and a batch for what will hurt training; nothing is changed.

    Args:
        model: any module. Weights, buffers, gradients that are there and settings of
            normalisations are looked at: NaN, infinities, subnormals, exploding scale, and the
            gain rms(W)·sqrt(fan) of every layer.
        optimizer: its state, its settings, and whether it holds the model's parameters.
        batch: one batch, tensors in any structure. It is read, and the model runs on it once, in
            training mode without gradients: a tensor is model(batch); a tuple or list
            model(*batch), or, if the model takes fewer, model(batch[0]) with targets behind it; a
            mapping model(**batch) without what the model does not take. Buffers, random numbers,
            flags and attributes are as before when audit returns.
        forward: called as forward(model, batch) in place of that.

    Returns:
        An AuditReport with a finding for each thing that is wrong. An exception of the model is
        such a finding.

    Raises:
        TypeError: model is no torch.nn.Module, optimizer has no param_groups, forward cannot be
            called, or batch is a loader. ValueError: forward without a batch.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU())
    >>> optimizer = torch.optim.Adam(model.half().parameters())
    >>> for finding in audit(model, optimizer).findings:
    ...     print(f"{finding.severity}: {finding.what} ({finding.where})")
    error: eps (param_groups[0]["eps"])
    warning: float16 weights (0.weight, 0.bias)

    Source of the gains: Glorot and Bengio, 2010; He et al., 2015.
    """
    _check(model, optimizer, batch, forward)
    values, found = value_findings(model, optimizer)
    trained = bool(getattr(optimizer, "state", None))
    weights, gains = weight_findings(model, found, trained)
    findings = [*values, *weights, *setting_findings(model, optimizer)]
    seen = Seen([], [])
    if batch is not None:
        way = passed(model, batch, forward)
        parts = leaves(batch, way)
        findings += batch_findings(model, parts)
        clean = not any(finding.what in ("nan", "inf") for finding in findings)
        if not any(is_lazy(parameter) for parameter in model.parameters()):
            seen = watched(model, parts, way, clean, {} if forward else arrays(batch))
    return AuditReport(
        [*findings, *seen.findings], gains, seen.activations, found.unread, len(found.rows)
    )


def _check(model: Any, optimizer: Any, batch: Any, forward: Any) -> None:
    check_model(model)
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"audit: expected an optimizer with param_groups, got {type(optimizer).__name__}; "
            "a batch is the third argument: audit(model, batch=batch)"
        )
    if isinstance(batch, (DataLoader, Dataset, Iterator)):
        loader = "DataLoader(dataset, 32)" if isinstance(batch, Dataset) else "loader"
        raise TypeError(
            f"audit: expected one batch, got {type(batch).__name__}: "
            f"give one batch: next(iter({loader}))"
        )
    if forward is not None and not callable(forward):
        raise TypeError(f"audit: expected forward(model, batch), got {type(forward).__name__}")
    if forward is not None and batch is None:
        raise ValueError("audit: forward needs a batch to run on, got None")


class AuditReport(Report):
    """What audit found; true if no finding is an error.

    findings     AuditFinding each, errors first; the table has those of numbered layers as one
    gains        of each layer: name, gain, and the ends of what is healthy
    activations  of each call of a ReLU, tanh or sigmoid: share of dead units or saturated outputs
    unread       tensors that could not be read, and why
    """

    title = "Audit"

    def __init__(
        self,
        findings: Sequence[AuditFinding],
        gains: Sequence[Gain] = (),
        activations: Sequence[Activation] = (),
        unread: dict[str, str] | None = None,
        tensors: int = 0,
    ):
        self.findings = sorted(findings, key=lambda one: SEVERITIES.index(one.severity))
        self.gains, self.activations = list(gains), list(activations)
        self.unread, self.tensors = dict(unread or {}), tensors

    def __bool__(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def summary(self) -> str:
        counts = {kind: sum(f.severity == kind for f in self.findings) for kind in SEVERITIES}
        said = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts.items() if n)
        read = f"{self.tensors} tensor{'s' * (self.tensors != 1)} read"
        unread = f", {len(self.unread)} not read" if self.unread else ""
        return f"audit: {said or 'nothing found'} ({read}{unread})"

    def columns(self) -> Sequence[str]:
        return "severity", "where", "what", "how bad", "what to do"

    def rows(self) -> Sequence[Sequence[object]]:
        return [(f.severity, f.where, f.what, f.how_bad, f.remedy) for f in grouped(self.findings)]

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, for JSON; NaN and infinities stay floats."""
        return {
            "ok": bool(self),
            "findings": [finding.to_dict() for finding in self.findings],
            "gains": [gain._asdict() for gain in self.gains],
            "activations": [activation._asdict() for activation in self.activations],
            "unread": dict(self.unread),
            "tensors": self.tensors,
        }

    def figures(self) -> list[tuple[str, Figure]]:
        """The gain of each layer with the healthy band; if a forward ran, the dead or saturated
        share of each nonlinearity."""
        from .figures import gains, shares

        layers = [gain for gain in self.gains if gain.fan]
        drawn = [gains(layers)] if layers else []
        return drawn + ([shares(self.activations, MOST)] if self.activations else [])
