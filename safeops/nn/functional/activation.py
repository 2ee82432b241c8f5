"""gelu, silu and mish with their limits at ±inf; softmax and its kin with torch's arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import readable
from ...ops._options import COMPUTE
from ...ops._row_formulas import finite
from ...ops.log_softmax import log_softmax as _log_softmax
from ...ops.softmax import softmax as _softmax
from ...ops.softmin import softmin as _softmin
from ._scaled import small, taken

_HALF = (torch.float16, torch.bfloat16)
_FAR = 2.0**40  # beyond, x times its gate is x or 0 in every dtype


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    r"""x Phi(x), also at ±inf.

    .. math:: y = x \Phi(x) \text{ or } \frac{x}{2} \left(1 + \tanh\left(\sqrt{2 / \pi} \,
              (x + 0.044715 x^3)\right)\right)

    torch gives NaN at -inf, NaN gradients at both infinities, and with "tanh" also where x^3
    overflows. Here the value at -inf is 0 with the gradient 0, and the gradient at +inf 1.

    Args:
        input: a tensor of any shape.
        approximate: "none" or "tanh".

    Returns:
        A tensor like input; with torch's own bits but for what is said above.

    Raises:
        RuntimeError: what torch raises.

    >>> gelu(torch.tensor([float("-inf"), 0.0, float("inf")]))
    tensor([0., 0., inf])

    Source: torch.nn.functional.gelu.
    """
    look = _near if approximate == "none" else small
    return _gated(lambda x: F.gelu(x, approximate=approximate), input, look)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    r"""x sigmoid(x), also at ±inf.

    .. math:: y = \frac{x}{1 + \exp(-x)}

    torch gives NaN at -inf, and NaN gradients at both infinities. Here the value at -inf is 0 with
    the gradient 0, and the gradient at +inf 1.

    Args:
        input: a tensor of any shape.
        inplace: write the result into input.

    Returns:
        A tensor like input; with torch's own bits but for what is said above.

    Raises:
        RuntimeError: what torch raises.

    >>> silu(torch.tensor([float("-inf"), 0.0, float("inf")]))
    tensor([0., 0., inf])

    Source: torch.nn.functional.silu.
    """
    return _gated_inplace(F.silu, input) if inplace else _gated(F.silu, input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    r"""x tanh(softplus(x)), also at ±inf.

    .. math:: y = x \tanh(\log(1 + \exp(x)))

    torch gives NaN at -inf, and NaN gradients at both infinities. Here the value at -inf is 0 with
    the gradient 0, and the gradient at +inf 1.

    Args:
        input: a tensor of any shape.
        inplace: write the result into input.

    Returns:
        A tensor like input; with torch's own bits but for what is said above.

    Raises:
        RuntimeError: what torch raises.

    >>> mish(torch.tensor([float("-inf"), 0.0, float("inf")]))
    tensor([0., 0., inf])

    Source: torch.nn.functional.mish.
    """
    return _gated_inplace(F.mish, input) if inplace else _gated(F.mish, input)


def _near(input: Tensor) -> bool:
    """Whether all elements are finite; sums of half types overflow too soon to tell."""
    return small(input) if input.dtype in _HALF else finite(input)


def _gated(
    op: Callable[..., Tensor], input: Tensor, look: Callable[[Tensor], bool] = _near
) -> Tensor:
    """op(input), and its limits where the input is far out."""
    if not taken(input) or (readable(input) and look(input)):
        return op(input)
    far = input.detach().abs() >= _FAR
    value = op(torch.where(far, 0.0, input))
    return torch.where(far, torch.where(input > 0, input, 0.0), value)


def _gated_inplace(op: Callable[..., Tensor], input: Tensor) -> Tensor:
    if not taken(input) or (readable(input) and _near(input)):
        return op(input, inplace=True)
    before = input.clone() if input.requires_grad and torch.is_grad_enabled() else input
    return input.copy_(_gated(op, before))


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """safeops.softmax with the arguments of torch.nn.functional.softmax.

    >>> softmax(torch.full((2,), float("-inf")), 0)
    tensor([0., 0.])
    """
    dim = _dim_of("softmax", input, dim, _stacklevel)
    op = _softmax if _taken_as(input, dtype) else F.softmax
    return op(input, dim, dtype=dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """safeops.log_softmax with the arguments of torch.nn.functional.log_softmax.

    >>> log_softmax(torch.zeros(1), 0)
    tensor([0.])
    """
    dim = _dim_of("log_softmax", input, dim, _stacklevel)
    op = _log_softmax if _taken_as(input, dtype) else F.log_softmax
    return op(input, dim, dtype=dtype)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """safeops.softmin with the arguments of torch.nn.functional.softmin.

    >>> softmin(torch.full((2,), float("inf")), 0)
    tensor([0., 0.])
    """
    dim = _dim_of("softmin", input, dim, _stacklevel)
    op = _softmin if _taken_as(input, dtype) else F.softmin
    return op(input, dim, dtype=dtype)


def _dim_of(name: str, input: Tensor, dim: int | None, stacklevel: int) -> int:
    """The dim that was given, else torch's choice, and its warning."""
    if dim is not None:
        return dim
    return F._get_softmax_dim(name, input.dim(), stacklevel + 1)  # type: ignore[attr-defined]


def _taken_as(input: Tensor, dtype: torch.dtype | None) -> bool:
    return taken(input) and (dtype is None or dtype in COMPUTE)
