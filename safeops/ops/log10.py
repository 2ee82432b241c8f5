"""safe_log10: the logarithm to base 10, defined on the whole real line."""

from __future__ import annotations

import torch
from torch import Tensor

from ._logarithms import logarithm

_log10 = logarithm("log10", torch.log10, 10.0)


def safe_log10(
    x: Tensor, *, eps: float | None = None, fill: float | None = None, extend: str = "clamp"
) -> Tensor:
    r"""log10(x), and log10 of the smallest positive number of the dtype where x <= 0.

    .. math:: f(x) = \log_{10}(\max(x, \epsilon)), \qquad f'(x) = \frac{1}{x \ln 10}
              \text{ if } x \ge \epsilon \text{ and } x > 0, \text{ else } 0

    torch gives -inf at 0 and NaN below, with gradients ±inf. Here the gradient at a guarded
    element is 0. The options are those of safe_log.

    Args:
        x: a tensor of any shape.
        eps: guard x < eps instead of x <= 0; the value there is log10(eps). Converted to the
            compute type, so 1e-8 works in float16.
        fill: the value at guarded elements, in place of the clamped one.
        extend: ``"clamp"``, or ``"linear"``: below eps the function continues along its tangent,
            and its gradient 1 / (eps ln 10) pulls x back.

    Returns:
        A tensor like x, with torch.log10's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN; log10(inf) is inf; an extension that overflows is
        -finfo(dtype).max.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; an unknown extend;
            extend="linear" without eps or with a fill.

    >>> safe_log10(torch.tensor([0.0, 1000.0]), eps=0.01)
    tensor([-2.,  3.])

    Source: torch.log10, guarded as safe_log is.
    """
    return _log10((eps, fill, extend), x)
