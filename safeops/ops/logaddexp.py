"""safe_logaddexp: log(exp(x) + exp(y)), with a gradient at the infinities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._log_sums import log_sum

_logaddexp = log_sum("safe_logaddexp", torch.logaddexp, torch.exp, math.e)


def safe_logaddexp(x: Tensor, y: Tensor) -> Tensor:
    r"""log of a sum of two powers of e, as torch's own.

    .. math:: f(x, y) = \log_{e}(e^x + e^y), \qquad
              \frac{\partial f}{\partial x} = \frac{1}{1 + e^{y - x}}

    torch's gradient is NaN where x and y are the same infinity. Here it is 0 where both are -inf,
    and the value is -inf; where both are +inf it is 1/2 to each. One +inf takes the whole gradient.

    Args:
        x, y: tensors of shapes that broadcast.

    Returns:
        A tensor of the broadcast shape with torch.logaddexp's own values, at most finfo(dtype).max;
        dtype by torch's promotion. NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> x = torch.tensor([-torch.inf, 0.0], requires_grad=True)
    >>> safe_logaddexp(x, torch.tensor([-torch.inf, 0.0])).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.5000])

    Source: torch.logaddexp.
    """
    return _logaddexp((), x, y)
