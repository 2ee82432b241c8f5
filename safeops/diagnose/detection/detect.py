"""detect: the operation that made the first NaN or infinity: forward, backward, or a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..._arguments import check_model
from ..._where import EAGERLY, user_frame
from .._report import Report
from . import causes
from .backward import NodeEvent, watched_backward
from .findings import Finding
from .forward import Watch
from .judge import Event, origin_of, verdict_on
from .operations import is_bad
from .scene import Scene
from .taints import MEANT, TOLD, Origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = ("nan", "inf")
_MOST = 1000  # findings that are kept
_SCALED = (causes.HALF_OVERFLOW, causes.EXPLODING)


class Detection(Report):
    """What `detect` found; true if that is nothing.

    findings: all, in their order; ``first`` is the first of them or None. handled: overflows of
    scaled gradients for which a GradScaler skipped the step. operations: how many were read.
    """

    title = "First bad operation"

    def __init__(
        self,
        model: nn.Module,
        kinds: Sequence[str] = _KINDS,
        allow: Sequence[str] = (),
        breakpoint_on_nonfinite: bool = False,
    ):
        self.findings: list[Finding] = []
        self.handled: list[Finding] = []
        self.operations = 0
        self._model, self._kinds = model, tuple(kinds)
        self._allowed = {causes.plain_name(op) for op in allow}
        self._stops = breakpoint_on_nonfinite
        self._active: ExitStack | None = None
        self._earlier = 0  # findings of steps that are over

    @property
    def first(self) -> Finding | None:
        return self.findings[0] if self.findings else None

    def __bool__(self) -> bool:
        return not self.findings

    def __enter__(self) -> Detection:
        if self._active is not None:
            raise RuntimeError("detect: this one is entered already; call detect(model) again")
        self.scene = Scene(self._model)
        with ExitStack() as stack:
            stack.enter_context(self.scene.where)
            stack.enter_context(EAGERLY)
            stack.enter_context(watched_backward(self))
            stack.callback(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
            self._watch = stack.enter_context(Watch(self))
            self._active = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        stack, self._active = self._active, None
        if stack is not None:
            stack.close()
        self.scene = Scene(self._model)
        if isinstance(error[1], BaseException) and self.findings and hasattr(error[1], "add_note"):
            error[1].add_note(str(self))  # which may be why

    def _optimizer_steps(self, optimizer: torch.optim.Optimizer, *args: Any) -> None:
        names = self.scene.names
        if not any(known is optimizer for known in names.optimizers):
            names.optimizers.append(optimizer)

    def judge(self, event: Event) -> None:
        """What is not finite in a result was made, came in, or is meant."""
        scene = self.scene
        verdict = verdict_on(event, scene.taints, scene.outside)
        origin = verdict.origin
        if origin is not None and origin.cause == causes.RANK and self._told_in_this_step():
            self._remember(event, TOLD)  # it was this one
        elif verdict.accused:
            aside = origin.finding if origin else None
            told = self._tell(
                replace(aside, step=scene.step) if aside else scene.finding(event, origin)
            )
            self._remember(event, TOLD if told else MEANT, inputs=origin is not None)
        elif origin is None:
            self._remember(event, scene.made_aside(event))
        else:
            self._remember(event, origin)

    def _remember(self, event: Event, origin: Origin, inputs: bool = False) -> None:
        """Of the result; of the inputs that are to blame for it, too."""
        scene = self.scene
        for given in event.given if inputs else ():
            blamed = origin_of(given, scene.taints, scene.outside)
            if blamed is not None and not blamed.meant:
                scene.taints.put(given.memory, origin)
        for tensor in event.results:
            scene.taints.put(tensor, origin)

    def judge_outputs(self, outputs: list[Tensor]) -> None:
        """Of a backward: what waited to be made something of has been."""
        for output in filter(is_bad, outputs):
            origin = self.scene.taints.get(output)
            if origin is not None and origin.finding is not None:
                self._tell(replace(origin.finding, step=self.scene.step))
                self.scene.taints.put(output, TOLD)

    @contextmanager
    def aside(self, needed: bool) -> Iterator[None]:
        """Operations are not read, unless that is needed; nor if another mode came later."""
        idle = not needed and _get_current_dispatch_mode() is self._watch
        if idle:
            self._watch.__exit__(None, None, None)
        try:
            yield
        finally:
            if idle:
                self._watch.__enter__()

    def judge_node(self, event: NodeEvent) -> None:
        """What is not finite in a gradient was made by its node, unless the forward was bad."""
        hidden = not event.saved and event.leaf is None and self._told_in_this_step()
        if not (hidden or self.scene.follows(event)):
            self._tell(self.scene.node_finding(event))

    def _told_in_this_step(self) -> bool:
        return any(finding.step == self.scene.step for finding in self.findings)

    def step_is_over(self, skipped: bool, scale: Tensor) -> None:
        """A GradScaler takes overflows as they come, as long as it has a scale to lower."""
        if skipped and scale.item() >= 1:
            recent, self.findings = self.findings[self._earlier :], self.findings[: self._earlier]
            for finding in recent:
                scaled = finding.direction == "backward" and finding.cause in _SCALED
                (self.handled if scaled else self.findings).append(finding)
        self._earlier = len(self.findings)

    def _tell(self, finding: Finding) -> bool:
        """Whether it is wanted."""
        kind = "nan" if finding.counts.nan else "inf"
        if kind not in self._kinds or causes.plain_name(finding.op) in self._allowed:
            return False
        if len(self.findings) < _MOST and not any(map(finding.is_like, self.findings)):
            self.findings.append(finding)
        if self._stops:
            _stop(finding)
        return True

    def summary(self) -> str:
        if self.first is None:
            if not self.operations:
                return "nothing ran: do the forward, backward and step within `with detect(model):`"
            handled = f", {len(self.handled)} overflows of scaled gradients skipped"
            return f"{self.operations} operations, all finite" + handled * bool(self.handled)
        more = f"; {len(self.findings) - 1} more" * (len(self.findings) > 1)
        return f"{self.first.summary()}{more}"

    def details(self) -> str:
        return "" if self.first is None else self.first.details()

    def columns(self) -> Sequence[str]:
        return "cause", "op", "direction", "module", "source", "steps", "result"

    def rows(self) -> Sequence[Sequence[object]]:
        """Of all findings, if there are several; those that differ only in the step are one."""
        groups: dict[tuple, list[Finding]] = {}
        for one in self.findings:
            key = one.cause, one.op, one.direction, one.module or "(the model)", one.source
            groups.setdefault(key, []).append(one)
        return [
            (*key, _steps([one.step for one in group]), group[0].counts)
            for key, group in groups.items()
            if len(self.findings) > 1
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "first": None if self.first is None else self.first.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "handled": [finding.to_dict() for finding in self.handled],
            "operations": self.operations,
        }

    def figures(self) -> list[tuple[str, Figure]]:
        from .figure import ranges

        return [ranges(self.first)] if self.first is not None else []


def detect(
    model: nn.Module,
    *,
    kinds: Sequence[str] = _KINDS,
    allow: Sequence[str] = (),
    breakpoint_on_nonfinite: bool = False,
) -> Detection:
    r"""Name the operation that made the first NaN or infinity, while you train.

    Within this context every operation of this thread is read as it runs: of the forward, of the
    backward (each node of the graph, by the gradients that it gives) and of the optimizer's step.
    One is told whose result is not finite though its inputs are; what only hands a NaN on is not.
    What came in from outside (a batch, a weight that was bad before) is told at the first operation
    that computes with it.

    Infinities that are meant stay quiet: written by ``masked_fill``, ``where``, ``full`` or
    ``log`` of a mask of zeros and ones, or given in a mask, and handed on by sums, maxima and
    softmax. They are told once a NaN, or a product, is made of them. Overflows of gradients for
    which a GradScaler skips the step are ``.handled``.

    Compiled models run eagerly in here. What a checkpoint computes again is not told again.
    The result is the same as without; a step takes longer, see docs/performance.md.

    Args:
        model: whose modules and parameters are named.
        kinds: what is looked for; ("nan",) or ("inf",) for one of the two.
        allow: operations (torch's names) that may give what is not finite.
        breakpoint_on_nonfinite: drop into pdb, at the line of the user's that runs then; backward
            that is the call of backward().

    Returns:
        A context manager and `Report`: ``.first`` is a Finding or None, ``.findings`` has all.

    Raises:
        TypeError: no nn.Module. ValueError: an unknown kind or operation. RuntimeError: the same
        one is entered twice; one within another is fine.

    >>> import torch
    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> with detect(net) as d:
    ...     loss = net(torch.zeros(1, 2)).log().sum()
    >>> d.first.op, d.first.direction, d.first.cause
    ('log', 'forward', 'log of a non-positive number')

    Source: torch.utils._python_dispatch.TorchDispatchMode, torch.autograd.graph.Node.
    """
    check_model(model)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown or not kinds:
        raise ValueError(f"detect: expected kinds of 'nan' and 'inf', got {kinds}")
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    for op in allow:
        _check_operation(op)
    return Detection(model, kinds, allow, breakpoint_on_nonfinite)


def _check_operation(op: str) -> None:
    """torch's own, one of a library, or a node of the graph."""
    forms = (op, f"_{op}", f"{op}_", f"native_{op}", f"special_{op}", f"_foreach_{op}")
    known = "Backward" in op or "::" in op or any(hasattr(torch.ops.aten, form) for form in forms)
    if not known:
        raise ValueError(
            f"detect: expected names of operations in allow, as in a finding's .op, got {op!r}"
        )


def _steps(steps: list[int]) -> str:
    first, last = steps[0], steps[-1]
    return str(first) if first == last else f"{first} to {last} ({len(set(steps))})"


def _stop(finding: Finding) -> None:
    """pdb in the frame of the user's that runs now."""
    import pdb

    print(finding)
    debugger = pdb.Pdb()
    debugger.reset()
    debugger.interaction(user_frame(), None)
