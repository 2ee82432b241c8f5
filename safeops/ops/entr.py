"""safe_entr: the entropy of one probability, defined on the whole real line."""

from __future__ import annotations

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, no_constants, overflows, usual


def _value(x: Tensor) -> Tensor:
    outside = x <= 0
    return torch.where(outside, 0.0, torch.special.entr(torch.where(outside, 1.0, x)))


def _quick_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return grad * (-x.log() - 1)


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    outside = x <= 0
    return torch.where(outside, 0.0, _quick_gradient(grad, torch.where(outside, 1.0, x)))


_entr = Unary(
    "safe_entr",
    no_constants,
    Formulas(_value, (_gradient,), overflows, divides=False),
    Quick(usual(torch.special.entr), (_quick_gradient,)),
)


def safe_entr(x: Tensor) -> Tensor:
    r"""-x log(x), and 0 where x <= 0.

    .. math:: f(x) = -x \log x, \qquad f'(x) = -1 - \log x \text{ if } x > 0, \text{ else } 0

    torch gives -inf below 0 and an infinite gradient at 0, which every probability that underflowed
    has. Here the gradient at a guarded element is 0.

    Args:
        x: a tensor of any shape.

    Returns:
        A tensor like x, with torch.special.entr's own bits where nothing is guarded (integers give
        the default dtype); what overflows is -finfo(dtype).max. NaN stays NaN; entr(inf) is -inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> safe_entr(x).sum().backward()
    >>> x.grad
    tensor([ 0., -1.])

    Source: torch.special.entr.
    """
    return _entr((), x)
