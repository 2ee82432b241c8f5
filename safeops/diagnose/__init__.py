"""Find the first NaN: its operation, module, parameter and line; check before, watch while."""

from ._causes import CAUSES
from ._findings import Finding
from ._report import Report
from .audit import AuditReport, audit
from .detect import Detection, detect
from .inject import Injection, inject

__all__ = [
    "CAUSES",
    "AuditReport",
    "Detection",
    "Finding",
    "Injection",
    "Report",
    "audit",
    "detect",
    "inject",
]
