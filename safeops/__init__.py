"""Numeric safety for PyTorch: ops that stay finite, forward and backward."""

from . import amp, diagnose, guard, nn
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
from .guard.events import TrainingDiverged
from .guard.guard import Guard
from .ops.acos import safe_acos
from .ops.acosh import safe_acosh
from .ops.asin import safe_asin
from .ops.atan2 import safe_atan2
from .ops.atanh import safe_atanh
from .ops.cdist import cdist
from .ops.cosh import safe_cosh
from .ops.div import safe_div
from .ops.entr import safe_entr
from .ops.exp import safe_exp
from .ops.expm1 import safe_expm1
from .ops.finite_clip import finite_clip
from .ops.hypot import safe_hypot
from .ops.log import safe_log
from .ops.log1p import safe_log1p
from .ops.log2 import safe_log2
from .ops.log10 import safe_log10
from .ops.log_softmax import log_softmax
from .ops.logaddexp import safe_logaddexp
from .ops.logaddexp2 import safe_logaddexp2
from .ops.logcumsumexp import logcumsumexp
from .ops.logit import safe_logit
from .ops.logsumexp import logsumexp
from .ops.mean import mean
from .ops.pow import safe_pow
from .ops.rsqrt import safe_rsqrt
from .ops.sinh import safe_sinh
from .ops.softmax import softmax
from .ops.softmin import softmin
from .ops.sqrt import safe_sqrt
from .ops.std import std, std_mean, var, var_mean
from .ops.vector_norm import vector_norm
from .ops.xlog1py import safe_xlog1py
from .ops.xlogy import safe_xlogy
from .optim import GradNormClipper
from .swap.functions import safe_mode
from .swap.modules import swap_, swapped, unswap_
from .swap.report import SwapReport

__all__ = [
    "ClipReport",
    "FiniteReport",
    "GradNormClipper",
    "Guard",
    "NonFiniteGradientError",
    "NonFiniteGradientWarning",
    "SwapReport",
    "TensorStats",
    "TrainingDiverged",
    "__version__",
    "amp",
    "cdist",
    "check_finite",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_report",
    "diagnose",
    "finite_clip",
    "finite_clip_",
    "guard",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "mean",
    "nn",
    "safe_acos",
    "safe_acosh",
    "safe_asin",
    "safe_atan2",
    "safe_atanh",
    "safe_cosh",
    "safe_div",
    "safe_entr",
    "safe_exp",
    "safe_expm1",
    "safe_hypot",
    "safe_log",
    "safe_log1p",
    "safe_log2",
    "safe_log10",
    "safe_logaddexp",
    "safe_logaddexp2",
    "safe_logit",
    "safe_mode",
    "safe_pow",
    "safe_rsqrt",
    "safe_sinh",
    "safe_sqrt",
    "safe_xlog1py",
    "safe_xlogy",
    "softmax",
    "softmin",
    "std",
    "std_mean",
    "swap_",
    "swapped",
    "unswap_",
    "var",
    "var_mean",
    "vector_norm",
    "why_not_kernel",
]
