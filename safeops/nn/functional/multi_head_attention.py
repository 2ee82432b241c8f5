"""Attention of several heads, in which a query that may look at nothing gets 0."""

from __future__ import annotations

import math
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from ..._route import readable
from ...ops._row_formulas import all_finite
from ...ops.softmax import softmax
from .attention import scaled_dot_product_attention


def _softmax(input: Tensor, dim: int) -> Tensor:
    if readable(input):
        value = torch.softmax(input, dim)
        if all_finite(value):
            return value
    return softmax(input, dim)


def _check_padding(*sizes: Any) -> None:
    """torch's check breaks the compiler's graph; a wrong size is an error there too."""
    if not is_compiling():
        F._check_key_padding_mask(*sizes)  # type: ignore[attr-defined]


# The very function of torch, with other functions for some that it calls: under a TorchFunctionMode
# it would call the mode again in place of running. Without a __name__ the compiler takes what it
# calls from here.
_multi_head_attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {name: value for name, value in vars(F).items() if name != "__name__"}
    | {
        "_check_key_padding_mask": _check_padding,
        "has_torch_function": lambda tensors: False,
        "scaled_dot_product_attention": scaled_dot_product_attention,
        "softmax": _softmax,
    },
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of several heads between projections; 0 for a query that may look at nothing.

    torch gives NaN for a query whose keys are all masked, and NaN gradients to all weights. Here
    the attention is 0, so that the output is out_proj_bias, the weights are 0 and the gradients
    finite. On the CPU in eager mode, keys and values that key_padding_mask hides are not read, be
    they NaN.

    Args:
        query, key, value: [length, batch, E], or [length, E].
        embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn,
            dropout_p, out_proj_weight, out_proj_bias, training, use_separate_proj_weight,
            q_proj_weight, k_proj_weight, v_proj_weight, static_k, static_v, average_attn_weights,
            is_causal: as in torch.
        key_padding_mask, attn_mask: a bool one is True where a key is hidden; a floating one is
            added to the scores, and -inf hides a key.
        need_weights: return the weights too.

    Returns:
        The output, in the shape of query, and the weights or None.

    Raises:
        AssertionError, RuntimeError: what torch raises.

    >>> import torch
    >>> attention = torch.nn.MultiheadAttention(4, 2)
    >>> x, padding = torch.ones(3, 1, 4), torch.ones(1, 3, dtype=torch.bool)
    >>> output, weights = multi_head_attention_forward(
    ...     x, x, x, 4, 2, attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0,
    ...     attention.out_proj.weight, attention.out_proj.bias, key_padding_mask=padding)
    >>> weights.sum().item(), torch.equal(output, attention.out_proj.bias.expand(3, 1, 4))
    (0.0, True)

    Source: torch.nn.functional.multi_head_attention_forward, which runs here.
    """
    key, value = _without_padding(key, value, key_padding_mask)
    return _multi_head_attention(
        query,
        key,
        value,
        embed_dim_to_check,
        num_heads,
        in_proj_weight,
        in_proj_bias,
        bias_k,
        bias_v,
        add_zero_attn,
        dropout_p,
        out_proj_weight,
        out_proj_bias,
        training,
        key_padding_mask,
        need_weights,
        attn_mask,
        use_separate_proj_weight,
        q_proj_weight,
        k_proj_weight,
        v_proj_weight,
        static_k,
        static_v,
        average_attn_weights,
        is_causal,
    )


def _without_padding(key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """0 for keys and values that are hidden and no numbers."""
    if padding is None or not all(map(readable, (key, value, padding))):
        return key, value
    if all_finite(key) and (value is key or all_finite(value)):
        return key, value
    seen = ~padding if padding.dtype is torch.bool else padding != -math.inf
    if seen.dim() != key.dim() - 1 or seen.t().shape != key.shape[:-1]:
        return key, value
    seen = seen.t().unsqueeze(-1)
    clean = torch.where(seen, key, 0.0)
    return clean, clean if value is key else torch.where(seen, value, 0.0)
