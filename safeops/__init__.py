"""Numeric safety for PyTorch: ops that stay finite, forward and backward."""

from ._route import why_not_kernel
from ._version import __version__
from .ops.div import safe_div
from .ops.finite_clip import finite_clip
from .ops.log import safe_log
from .ops.log_softmax import log_softmax
from .ops.logsumexp import logsumexp
from .ops.softmax import softmax
from .ops.sqrt import safe_sqrt

__all__ = [
    "__version__",
    "finite_clip",
    "log_softmax",
    "logsumexp",
    "safe_div",
    "safe_log",
    "safe_sqrt",
    "softmax",
    "why_not_kernel",
]
