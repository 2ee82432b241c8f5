"""What a scan found, tensor by tensor and file by file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .._report import Report, _table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTHING = ("",) * 7  # in the columns of numbers
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
    """One file: its format and tensors, or the reason why it could not be read."""

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
    """What a scan found; true if every file could be read and every element is finite.

    ``files`` has a ScanFile each, ``bad`` the tensors that hold a NaN or an infinity, ``errors``
    the files that could not be read, ``findings`` all there is to say. Printed are the tensors with
    findings; with ``show_all`` the healthy ones too.
    """

    title = "Scan"

    def __init__(self, files: Sequence[ScanFile], show_all: bool = False):
        self.files, self.show_all = list(files), show_all

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

    def __bool__(self) -> bool:
        return not self.errors and not self.bad

    def summary(self) -> str:
        tensors, bad, errors = self.tensors, self.bad, self.errors
        unread = sum(bool(tensor.why) for tensor in tensors)
        amount = f"{_many(len(tensors), 'tensor')} in {_many(len(self.files), 'file')}"
        parts = [f"{len(bad)} of {amount} not finite: {_counts(bad)}"] if bad else []
        if not bad:
            parts = [
                f"{amount}, " + ("none that is not finite" if errors or unread else "all finite")
            ]
        parts += [f"{unread} not read"] if unread else []
        parts += [f"{_many(len(errors), 'file')} could not be read"] if errors else []
        return "; ".join(parts)

    def columns(self) -> Sequence[str]:
        return ("name", "tensor", "nan", "inf", "-inf", "subnormal", "zeros", "min", "max")

    def rows(self) -> Sequence[Sequence[object]]:
        found: list[Sequence[object]] = [
            (file.path, f"cannot be read: {file.error}", *NOTHING) for file in self.errors
        ]
        for file in self.files:
            prefix = f"{file.path}: " if len(self.files) > 1 else ""
            shown = (t for t in file.tensors if self.show_all or _finding_of(t))
            found += [(prefix + tensor.name, *_cells(tensor)) for tensor in shown]
        return found

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """As of any report; with show_all nothing is cut."""
        from rich.text import Text

        if not self.show_all:
            yield from super().__rich_console__(console, options)
            return
        yield Text(self.summary())
        yield _table(self.columns(), self.rows(), options.max_width)

    def to_dict(self) -> dict[str, Any]:
        """With every tensor, healthy or not; extremes are finite or None, so that it is JSON."""
        return {
            "finite": bool(self),
            "files": [
                asdict(file)
                | {"tensors": [t._asdict() | {"shape": list(t.shape)} for t in file.tensors]}
                for file in self.files
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }

    def figures(self) -> list[tuple[str, Figure]]:
        from .plot import ranges

        read = [tensor for tensor in self.tensors if tensor.min is not None or tensor.bad]
        return [("From min to max of every tensor", ranges(read))] if read else []


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _counts(tensors: Sequence[ScanTensor]) -> str:
    """As in "2 nan, 1 inf"."""
    names = {"nan": "nan", "posinf": "inf", "neginf": "-inf"}
    sums = {name: sum(getattr(t, column) for t in tensors) for column, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in sums.items() if count)


def _cells(tensor: ScanTensor) -> tuple[object, ...]:
    kind = f"{tensor.dtype}{list(tensor.shape)}"
    if tensor.why:
        return (f"{kind if tensor.dtype else ''} not read: {tensor.why}".strip(), *NOTHING)
    return (kind, *("" if cell is None else _short(cell) for cell in tensor[4:11]))


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
