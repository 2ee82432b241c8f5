"""Attention in which a query that may look at nothing gets 0."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._route import readable
from ...ops._row_formulas import all_finite
from ._scaled import taken

_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    r"""softmax(Q K^T scale + mask) V, and 0 for a query that the mask lets look at nothing.

    .. math:: O = \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{E}} + M\right) V

    What torch gives for a fully masked query depends on the kernel: 0, a mean of all values, or
    NaN, and NaN gradients. Here it is 0, with gradients 0, on all of them: such queries are
    unmasked before the call, and their output is replaced after it. The kernel is torch's, and
    without a mask the call too.

    On the CPU in eager mode a look at the output finds two more cases. Keys and values that are
    masked for every query are not read, be they NaN. And if all that is read is finite, but scores
    overflow, the computation is done again in the next wider type. Elsewhere fill what is padded
    with numbers.

    Args:
        query, key, value: [..., queries, E], [..., keys, E] and [..., keys, V].
        attn_mask: broadcasts to [..., queries, keys]. A bool one is True where a query may look at
            a key; a floating one is added, and -inf hides a key.
        dropout_p: is applied whenever it is greater than 0.
        is_causal: hide the keys after the query; not with a mask.
        scale: instead of 1 / sqrt(E).
        enable_gqa: key and value may have fewer heads.

    Returns:
        [..., queries, V]. A NaN that is read gives NaN.

    Raises:
        RuntimeError: what torch raises.

    >>> import torch
    >>> q = k = v = torch.ones(1, 2, 4)
    >>> scaled_dot_product_attention(q, k, v, torch.tensor([[True, True], [False, False]]))
    tensor([[[1., 1., 1., 1.],
             [0., 0., 0., 0.]]])

    Source: torch.nn.functional.scaled_dot_product_attention.
    """
    options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    options["enable_gqa"] = enable_gqa
    both = attn_mask is not None and is_causal  # of which torch knows no meaning
    if both or not taken(query, key, value) or not _is_mask(attn_mask):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **options)
    result = _attend(query, key, value, attn_mask, options)
    if readable(result) and not all_finite(result):
        return _attend(*_mended(query, key, value, attn_mask), options).to(result.dtype)
    return result


def _is_mask(mask: Any) -> bool:
    """None, or a mask that is known; a CausalBias never hides all keys of a query."""
    if type(mask).__name__ == "CausalBias":  # to import it would import the compiler
        return False
    return mask is None or taken(mask) or (isinstance(mask, Tensor) and mask.dtype is torch.bool)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """torch's own call, for queries that may look at something."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, **options)
    seen = _seen(mask)
    alive = seen.any(-1, keepdim=True)
    if readable(mask) and alive.all():
        return F.scaled_dot_product_attention(query, key, value, mask, **options)
    mask = mask | ~alive if mask.dtype is torch.bool else torch.where(alive, mask, 0.0)
    result = F.scaled_dot_product_attention(query, key, value, mask, **options)
    return torch.where(alive, result, 0.0)


def _seen(mask: Tensor) -> Tensor:
    return mask if mask.dtype is torch.bool else mask != -math.inf


def _mended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Without what nobody looks at, and in a wider type if what is left is finite."""
    if mask is not None:
        read = _seen(mask.unsqueeze(0) if mask.dim() == 1 else mask).any(-2)
        key, value = (_only_read(t, read) for t in (key, value))
    wider = _WIDER.get(query.dtype)
    if wider is None or not all(map(all_finite, (query, key, value))):
        return query, key, value, mask
    if mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(wider)
    return query.to(wider), key.to(wider), value.to(wider), mask


def _only_read(x: Tensor, read: Tensor) -> Tensor:
    """read is [..., heads, keys]; of several heads with one key, one of them is enough."""
    heads = x.shape[-3] if x.dim() > 2 else 1
    if read.dim() > 1 and read.shape[-2] not in (1, heads):
        read = read.unflatten(-2, (heads, -1)).any(-2)  # type: ignore[no-untyped-call]
    return torch.where(read.unsqueeze(-1), x, 0.0)
