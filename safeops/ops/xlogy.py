"""safe_xlogy: x log(y), defined on the whole plane."""

from __future__ import annotations

import torch
from torch import Tensor

from ._products import product
from .log import lowest

_xlogy = product("safe_xlogy", torch.xlogy, torch.log, 0.0, lowest)


def safe_xlogy(x: Tensor | float, y: Tensor | float) -> Tensor:
    r"""x log(y), 0 where x == 0; log(y) of the smallest positive number of the dtype where y <= 0.

    .. math:: f(x, y) = x \log y, \qquad \frac{\partial f}{\partial x} = \log y, \quad
              \frac{\partial f}{\partial y} = \frac{x}{y} \text{ if } y > 0, \text{ else } 0

    torch gives ∓inf at y == 0 and NaN below unless x == 0, with gradients that are not finite even
    where x == 0. Here the gradient to y is 0 where y <= 0, and so is that to x where x == 0 too.

    Args:
        x, y: tensors of shapes that broadcast, or Python numbers; at least one tensor.

    Returns:
        A tensor of the broadcast shape, with torch.xlogy's own bits where nothing is guarded; dtype
        by torch's promotion (integers give the default dtype). What overflows is
        ±finfo(dtype).max. NaN stays NaN, but 0 log(inf) is 0.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> safe_xlogy(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]))
    tensor([   0.0000, -103.2789])

    Source: torch.xlogy, with the logarithm of safe_log.
    """
    return _xlogy((), x, y)
