"""Numeric safety for PyTorch: ops that stay finite, forward and backward."""

from . import amp
from ._route import why_not_kernel
from ._version import __version__
from .gradients import (
    ClipReport,
    FiniteReport,
    NonFiniteGradientError,
    NonFiniteGradientWarning,
    TensorStats,
    check_finite,
    clip_grad_norm_,
    clip_grad_value_,
    clip_report,
    finite_clip_,
)
from .ops.div import safe_div
from .ops.finite_clip import finite_clip
from .ops.log import safe_log
from .ops.log_softmax import log_softmax
from .ops.logsumexp import logsumexp
from .ops.softmax import softmax
from .ops.sqrt import safe_sqrt
from .optim import GradNormClipper

__all__ = [
    "ClipReport",
    "FiniteReport",
    "GradNormClipper",
    "NonFiniteGradientError",
    "NonFiniteGradientWarning",
    "TensorStats",
    "__version__",
    "amp",
    "check_finite",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_report",
    "finite_clip",
    "finite_clip_",
    "log_softmax",
    "logsumexp",
    "safe_div",
    "safe_log",
    "safe_sqrt",
    "softmax",
    "why_not_kernel",
]
