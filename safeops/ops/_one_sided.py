"""What log and sqrt share: singular at 0 and below, continued there by a constant or a tangent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ._options import Constants, number, positive, within


def regular(x: Tensor, bound: float) -> Tensor:
    """Everything not guarded, NaN among it."""
    return ~(x < bound if bound else x <= 0)


def continued(
    op: Callable[[Tensor], Tensor], x: Tensor, bound: float, below: float, run: float
) -> Tensor:
    """op(x), and below + (x - bound) / run where x is guarded."""
    inside = regular(x, bound)
    outside = below + (torch.where(inside, bound, x) - bound) / run if run else below
    return torch.where(inside, op(torch.where(inside, x, 1.0)), outside)


def overflows(bound: float, below: float, run: float) -> bool:
    """Only a tangent can leave the dtype's range."""
    return run != 0


def one_sided(
    op: str,
    dtype: torch.dtype,
    eps: float | None,
    fill: float | None,
    extend: str,
    lowest: float,
    value: Callable[[float], float],
    run: Callable[[float], float],
) -> Constants:
    """Constants (bound, below, run) of an op guarded where x < bound or x <= 0.

    There the op is below + (x - bound) / run, or below if run is 0. Without eps the bound is 0
    and below is `lowest`; run(eps) is the inverse of the op's slope at eps.
    """
    _check_extension(op, eps, fill, extend)
    bound = 0.0 if eps is None else positive(op, "eps", eps, dtype)
    if fill is not None:
        return bound, within(number(op, "fill", fill), dtype), 0.0
    if eps is None:
        return bound, lowest, 0.0
    return bound, within(value(bound), dtype), run(bound) if extend == "linear" else 0.0


def _check_extension(op: str, eps: float | None, fill: float | None, extend: str) -> None:
    if extend not in ("clamp", "linear"):
        raise ValueError(f"{op}: extend must be 'clamp' or 'linear', got {extend!r}")
    if extend == "linear" and fill is not None:
        raise ValueError(
            f"{op}: fill={fill!r} and extend='linear' both say what happens below the bound; "
            "give one of them"
        )
    if extend == "linear" and eps is None:
        raise ValueError(f"{op}: extend='linear' needs eps, the point where the tangent starts")
