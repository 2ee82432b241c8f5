"""safe_xlog1py: x log(1 + y), defined on the whole plane."""

from __future__ import annotations

import torch
from torch import Tensor

from ._products import product
from .log1p import lowest

_xlog1py = product("safe_xlog1py", torch.special.xlog1py, torch.log1p, 1.0, lowest)


def safe_xlog1py(x: Tensor | float, y: Tensor | float) -> Tensor:
    r"""x log(1 + y), 0 where x == 0; log1p of the number next above -1 where y <= -1.

    .. math:: f(x, y) = x \log(1 + y), \qquad \frac{\partial f}{\partial x} = \log(1 + y), \quad
              \frac{\partial f}{\partial y} = \frac{x}{1 + y} \text{ if } y > -1,
              \text{ else } 0

    torch gives ∓inf at y == -1 and NaN below unless x == 0, with gradients that are not finite even
    where x == 0. Here the gradient to y is 0 where y <= -1, and so is that to x where x == 0 too.

    Args:
        x, y: tensors of shapes that broadcast, or Python numbers; at least one tensor.

    Returns:
        A tensor of the broadcast shape, with torch.special.xlog1py's own bits where nothing is
        guarded; dtype by torch's promotion (integers give the default dtype). What overflows is
        ±finfo(dtype).max. NaN stays NaN, but 0 log(inf) is 0.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> safe_xlog1py(torch.tensor([0.0, 1.0]), torch.tensor([-1.0, -1.0]))
    tensor([  0.0000, -16.6355])

    Source: torch.special.xlog1py, with the logarithm of safe_log1p.
    """
    return _xlog1py((), x, y)
