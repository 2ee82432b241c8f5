"""What a bisection says, and by which runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .._report import Report, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELLED = 60  # modules that have a label in the figure

FOUND, FINITE = "found", "finite as it is"
IRREPRODUCIBLE = "not reproducible"


class Kind(NamedTuple):
    """The words of one kind of bisection."""

    title: str
    done: str  # what is done to modules
    need: str  # what a module needs
    not_these: str  # the verdict if doing it to all does not help
    look: str  # and then


LAYERS = Kind(
    "Bisection of layers",
    "frozen",
    "must not be trained as it is",
    "frozen all, and still not finite",
    ": not the weights' training. Look at the data and the initial weights (audit) and at the first"
    " bad operation (detect)",
)
AUTOCAST = Kind(
    "Bisection of half precision",
    "in float32",
    "must leave half precision",
    "all left half precision, and still not finite",
    ": not half precision inside of the modules. Look at what the step computes outside of them,"
    " and at the first bad operation (detect)",
)


NOTHING_HALF = (
    "nothing ran in half precision: pass dtype=torch.float16, or use autocast in the step"
)


@dataclass(frozen=True)
class Culprit:
    """A module of the shortest set: where, what it needs, how bad, what to do."""

    where: str
    what: str
    severity: str
    remedy: str


class Trial(NamedTuple):
    """One run of the step: the modules concerned, and whether all was finite afterwards."""

    modules: tuple[str, ...]
    finite: bool


class BisectReport(Report):
    """The shortest set of modules that makes the step finite; true if it was finite as it is.

    Attributes:
        verdict: "found"; "finite as it is"; "frozen all, and still not finite" (or "all left half
            precision, and still not finite"); "not reproducible": the same run gave two outcomes.
        modules: their dotted paths, in the model's order; empty unless found.
        smallest: whether it is proven that no set is smaller, given that a larger set never hurts
            where a smaller one helps; false where the trials contradict that.
        runs: how often the step ran. trials: of each run (modules, finite).
        candidates: the paths of all modules that were looked at.
        findings: of each module what it needs and the remedy.
        note: what else is to be said, or "".
    """

    def __init__(
        self,
        kind: Kind,
        verdict: str,
        candidates: Sequence[str],
        trials: Sequence[Trial],
        findings: Sequence[Culprit] = (),
        smallest: bool = False,
    ):
        self.title, self.kind, self.verdict = kind.title, kind, verdict
        self.candidates, self.trials = list(candidates), list(trials)
        self.findings, self.smallest = list(findings), smallest
        self.note = ""

    @property
    def modules(self) -> list[str]:
        return [finding.where for finding in self.findings]

    @property
    def runs(self) -> int:
        return len(self.trials)

    def __bool__(self) -> bool:
        return self.verdict == FINITE

    def summary(self) -> str:
        runs = f"{self.runs} run{'s' * (self.runs != 1)}"
        more = {FOUND: self._found(), FINITE: "", IRREPRODUCIBLE: _REPEAT}
        note = f"; {self.note}" if self.note else ""
        return f"{self.verdict}{more.get(self.verdict, self.kind.look)}{note} ({runs})"

    def _found(self) -> str:
        names = ", ".join(_shown(name) for name in self.modules)
        proof = "no set is smaller" if self.smallest else "a smaller set is not ruled out"
        return f": finite with {names} {self.kind.done}; {proof}"

    def columns(self) -> Sequence[str]:
        return "module", "what", "remedy"

    def rows(self) -> Sequence[Sequence[object]]:
        return [(_shown(one.where), one.what, one.remedy) for one in self.findings]

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "modules": self.modules,
            "smallest": self.smallest,
            "note": self.note,
            "runs": self.runs,
            "findings": [asdict(finding) for finding in self.findings],
            "candidates": self.candidates,
            "trials": [
                {"modules": list(trial.modules), "finite": trial.finite} for trial in self.trials
            ],
        }

    def figures(self) -> list[tuple[str, Figure]]:
        figure = new_figure(10.0, 1.2 + 0.14 * min(len(self.candidates), LABELLED))
        _grid(figure.add_subplot(), self)
        caption = "Runs from left to right: blue and finite, or orange and not; dark: {}"
        return [(caption.format(self.kind.done), figure)]


_REPEAT = (
    ": the same run was finite once and once not; seed what is random in the step, let it use one"
    " batch, and give what else has a state in others"
)


def _shown(name: str) -> str:
    return name or "(the model itself)"


def _grid(axes: Any, report: BisectReport) -> None:
    """0 and 1: not finite, without and with the module; 2 and 3: finite."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(["#f9dfcb", "#c4560a", "#d6e4f5", "#1f5fa8"])
    cells = [
        [2 * trial.finite + (name in trial.modules) for trial in report.trials]
        for name in report.candidates
    ]
    axes.imshow(cells, aspect="auto", cmap=colours, vmin=0, vmax=3, interpolation="nearest")
    axes.set_xlabel("run")
    axes.set_xticks(range(0, report.runs, 1 + report.runs // 20))
    axes.set_xticklabels([run + 1 for run in axes.get_xticks()])
    step = 1 + len(report.candidates) // LABELLED
    places = range(0, len(report.candidates), step)
    axes.set_yticks(places, [_shown(report.candidates[place]) for place in places], fontsize=8)
