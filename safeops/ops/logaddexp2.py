"""safe_logaddexp2: log2(2**x + 2**y), with a gradient at the infinities."""

from __future__ import annotations

import torch
from torch import Tensor

from ._log_sums import log_sum

_logaddexp2 = log_sum("safe_logaddexp2", torch.logaddexp2, torch.exp2, 2.0)


def safe_logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    r"""log of a sum of two powers of 2, as torch's own.

    .. math:: f(x, y) = \log_{2}(2^x + 2^y), \qquad
              \frac{\partial f}{\partial x} = \frac{1}{1 + 2^{y - x}}

    torch's gradient is NaN where x and y are the same infinity. Here it is 0 where both are -inf,
    and the value is -inf; where both are +inf it is 1/2 to each. One +inf takes the whole gradient.

    Args:
        x, y: tensors of shapes that broadcast.

    Returns:
        A tensor of the broadcast shape with torch.logaddexp2's own values, at most
        finfo(dtype).max; dtype by torch's promotion. NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> x = torch.tensor([-torch.inf, 0.0], requires_grad=True)
    >>> safe_logaddexp2(x, torch.tensor([-torch.inf, 0.0])).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.5000])

    Source: torch.logaddexp2.
    """
    return _logaddexp2((), x, y)
