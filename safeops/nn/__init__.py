"""torch.nn's modules and losses that can give NaN, made safe, and their functions."""

from . import functional
from .layers import *  # noqa: F403
from .layers import __all__ as _layers
from .losses import *  # noqa: F403
from .losses import __all__ as _losses

MODULES = (*_layers, *_losses)
__all__ = ["functional", *MODULES]
