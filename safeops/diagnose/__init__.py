"""Find the first NaN: its operation, module, parameter and line; check before, watch while."""

from ._causes import CAUSES
from ._findings import Finding
from ._report import Report
from .audit import AuditReport, audit
from .bisect import BisectReport, bisect_autocast, bisect_layers
from .detect import Detection, detect
from .inject import Injection, inject
from .monitor import Monitor, monitor
from .scan import ScanError, ScanReport, scan

__all__ = [
    "CAUSES",
    "AuditReport",
    "BisectReport",
    "Detection",
    "Finding",
    "Injection",
    "Monitor",
    "Report",
    "ScanError",
    "ScanReport",
    "audit",
    "bisect_autocast",
    "bisect_layers",
    "detect",
    "inject",
    "monitor",
    "scan",
]
