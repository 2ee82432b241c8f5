"""torch.nn's modules and losses that can give NaN, made safe, and their functions."""

from . import functional
from .modules import *  # noqa: F403
from .modules import __all__ as _modules

__all__ = ["functional", *_modules]
