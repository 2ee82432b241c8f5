"""Find the first NaN: its operation, module, parameter and line; check before, watch while."""

from ._report import Report
from .auditing.audit import AuditReport, audit
from .bisection.bisect import BisectReport, bisect_autocast, bisect_layers
from .detection.causes import CAUSES
from .detection.detect import Detection, detect
from .detection.findings import Finding
from .injection.inject import Injection, inject
from .monitoring.monitor import Monitor, monitor
from .scanning.scan import ScanError, ScanReport, scan

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
