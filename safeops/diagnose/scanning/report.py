"""What a scan found, tensor by tensor and file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._reports import in_words
from .._report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTHING = ("-",) * 7  # in the columns of numbers
NAMED = 5  # skipped files in the printed line
SIZEABLE = 0.01  # share of subnormals that is worth a warning
REMEDIES = {
    "nan": "load an earlier checkpoint; safeops.diagnose.detect names the operation that made it",
    "inf": "load an earlier checkpoint; safeops.diagnose.detect names the operation that made it",
    "subnormal": "torch.set_flush_denormal(True), or look for what shrinks this tensor",
    "not read": "convert the tensor as the reason says, or check it after loading",
    "unreadable": "do as the message says, and scan again",
}


class ScanTensor(NamedTuple):
    """One tensor. min and max are those of the finite elements, None if there are none; subnormal
    and zeros are None of integers; why is the reason that it was not read, or ""."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numel: int
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    subnormal: int | None = None
    zeros: int | None = None
    min: float | None = None
    max: float | None = None
    why: str = ""

    @property
    def bad(self) -> int:
        """How many elements are NaN or infinite."""
        return self.nan + self.posinf + self.neginf


@dataclass(frozen=True)
class ScanFile:
    """One file: its format and tensors, or the reason why nothing of it could be read."""

    path: str
    format: str = ""
    tensors: Sequence[ScanTensor] = field(default=())
    error: str = ""


@dataclass(frozen=True)
class ScanFinding:
    """where (file and tensor), what ("nan", "inf", "subnormal", "not read", "unreadable"), amount
    (elements), severity ("error" or "warning"), remedy, and what there is to say of it."""

    where: str
    what: str
    amount: int
    severity: str
    remedy: str
    detail: str = ""


class ScanReport(Report):
    """What a scan found; true if every file could be read and every element is finite, and there
    was something to read.

    ``files`` has a ScanFile each, ``bad`` the tensors that hold a NaN or an infinity, ``errors``
    the files that could not be read, ``skipped`` the paths of those that are no tensor files,
    ``findings`` all there is to say. Printed are the tensors with findings; with ``show_all`` the
    healthy ones too.
    """

    title = "Scan"
    whole_from = 2  # no number is broken

    def __init__(
        self, files: Sequence[ScanFile], show_all: bool = False, skipped: Sequence[str] = ()
    ):
        self.files, self.show_all, self.skipped = list(files), show_all, list(skipped)

    @property
    def tensors(self) -> list[ScanTensor]:
        return [tensor for file in self.files for tensor in file.tensors]

    @property
    def bad(self) -> list[ScanTensor]:
        return [tensor for tensor in self.tensors if tensor.bad]

    @property
    def errors(self) -> list[ScanFile]:
        return [file for file in self.files if file.error]

    @property
    def findings(self) -> list[ScanFinding]:
        """Errors first."""
        found = [finding for file in self.files for finding in _of_file(file)]
        return sorted(found, key=lambda finding: finding.severity != "error")

    @property
    def finite(self) -> bool | None:
        """Whether every file was read and every element is finite; None if nothing was read."""
        if all(tensor.why for tensor in self.tensors):
            return None
        return not self.errors and not self.bad

    def __bool__(self) -> bool:
        return bool(self.finite)

    def summary(self) -> str:
        tensors, bad, errors = self.tensors, self.bad, self.errors
        unread = sum(bool(t.why) for file in self.files if not file.error for t in file.tensors)
        amount = f"{_many(len(tensors), 'tensor')} in {_many(len(self.files), 'file')}"
        parts = [f"{len(bad)} of {amount} not finite: {_counts(bad)}"] if bad else []
        if self.finite is None:
            parts = ["nothing read" + ("" if errors or self.skipped else ": no tensors")]
        elif not bad:
            parts = [
                f"{amount}, " + ("none that is not finite" if errors or unread else "all finite")
            ]
        parts += [f"{unread} not read"] if unread else []
        parts += [f"{_many(len(errors), 'file')} could not be read"] if errors else []
        parts += [f"{_many(len(self.skipped), 'file')} skipped"] if self.skipped else []
        return "; ".join(parts)

    def details(self) -> str:
        """The files that could not be read, each with the reason, and those that were skipped."""
        lines = [f"{file.path}: cannot be read: {file.error}" for file in self.errors]
        if self.skipped:
            more = len(self.skipped) - NAMED
            names = ", ".join(self.skipped[:NAMED]) + (f" and {more} more" if more > 0 else "")
            lines.append(f"skipped as no tensor file: {names}")
        return "\n".join(lines)

    def columns(self) -> Sequence[str]:
        return ("name", "tensor", "nan", "inf", "-inf", "subnormal", "zeros", "min", "max")

    def rows(self) -> Sequence[Sequence[object]]:
        return [
            (name, *_cells(tensor))
            for name, tensor, error in self._named()
            if self.show_all or (_finding_of(tensor) and not error)
        ]

    def _named(self) -> Iterator[tuple[str, ScanTensor, str]]:
        """Every tensor with its name in the table, and the error of its file."""
        for file in self.files:
            prefix = f"{file.path}: " if len(self.files) > 1 else ""
            yield from ((prefix + tensor.name, tensor, file.error) for tensor in file.tensors)

    def printed(self) -> int | None:
        return None if self.show_all else super().printed()

    def to_dict(self) -> dict[str, Any]:
        """With every tensor, healthy or not; extremes are finite or None, so that it is JSON.
        "finite" is None if nothing was read."""
        return {
            "finite": self.finite,
            "skipped": self.skipped,
            "files": [
                asdict(file)
                | {"tensors": [t._asdict() | {"shape": list(t.shape)} for t in file.tensors]}
                for file in self.files
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }

    def figures(self) -> list[tuple[str, Figure]]:
        from .plot import ranges

        named = [(name, tensor) for name, tensor, _ in self._named()]
        if not any(tensor.min is not None or tensor.bad for _, tensor in named):
            return []
        caption = "From min to max of every tensor, numbered from 1 as --all lists them"
        return [(caption + _ends(named), ranges([tensor for _, tensor in named]))]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _ends(named: Sequence[tuple[str, ScanTensor]]) -> str:
    """The tensors that reach lowest and highest, for a caption."""
    low = [(t.min, place, name) for place, (name, t) in enumerate(named, 1) if t.min is not None]
    high = [(t.max, -place, name) for place, (name, t) in enumerate(named, 1) if t.max is not None]
    if not low or not high:
        return ""
    (least, first, lowest), (most, last, highest) = min(low), max(high)
    return (
        f"; the lowest is {lowest} (number {first}, {least:.4g}), "
        f"the highest {highest} (number {-last}, {most:.4g})"
    )


def _counts(tensors: Sequence[ScanTensor]) -> str:
    """As in "2 nan, 1 inf"."""
    nan = sum(tensor.nan for tensor in tensors)
    posinf, neginf = (sum(t.posinf for t in tensors), sum(t.neginf for t in tensors))
    return in_words(nan, posinf, neginf)


def _cells(tensor: ScanTensor) -> tuple[object, ...]:
    kind = f"{tensor.dtype}{list(tensor.shape)}"
    if tensor.why:
        return (f"{kind if tensor.dtype else ''} not read: {tensor.why}".strip(), *NOTHING)
    return (kind, *("-" if cell is None else _short(cell) for cell in tensor[4:11]))


def _short(number: float) -> float:
    return number if isinstance(number, int) else float(f"{number:.4g}")


def _sizeable(tensor: ScanTensor) -> bool:
    return (tensor.subnormal or 0) > SIZEABLE * tensor.numel


def _finding_of(tensor: ScanTensor) -> str:
    """In words; "" of a healthy tensor."""
    if tensor.why:
        return f"not read: {tensor.why}"
    small = f"{tensor.subnormal} subnormal" if _sizeable(tensor) else ""
    return ", ".join(part for part in (_counts([tensor]), small) if part)


def _of_file(file: ScanFile) -> list[ScanFinding]:
    found = [_finding(file.path, "unreadable", 0, file.error)] if file.error else []
    for tensor in file.tensors:
        where = f"{file.path}: {tensor.name}"
        amounts = {
            "nan": tensor.nan,
            "inf": tensor.posinf + tensor.neginf,
            "subnormal": _sizeable(tensor) and tensor.subnormal,
            "not read": tensor.numel if tensor.why else 0,
        }
        text = _finding_of(tensor)
        found += [_finding(where, what, int(n or 0), text) for what, n in amounts.items() if n]
    return found


def _finding(where: str, what: str, amount: int, detail: str) -> ScanFinding:
    severity = "warning" if what in ("subnormal", "not read") else "error"
    return ScanFinding(where, what, amount, severity, REMEDIES[what], detail)
