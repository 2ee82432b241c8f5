"""Attention of several heads: torch's own, and 0 for a query that may look at nothing."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from safeops.nn.functional.multi_head_attention import multi_head_attention_forward
from tests.cases import DTYPES
from tests.samples import label
from tests.test_attention import BATCH, HEADS, INF, LENGTH, assert_equals_torch, compiles


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_equals_torch(dtype):
    assert_equals_torch(
        multi_head_attention_forward,
        F.multi_head_attention_forward,
        "nn.functional.multi_head_attention_forward",
        dtype,
    )


VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "key bias": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "separate weights": {"kdim": 6, "vdim": 5},
    "dropout": {"dropout": 0.5},
}


class Heads(torch.nn.MultiheadAttention):
    """torch's module; function is what its forward comes to."""

    function = staticmethod(multi_head_attention_forward)

    def forward(self, *args, **kwargs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, "multi_head_attention_forward", self.function)
            return super().forward(*args, **kwargs)


def heads(batch_first=False, **options):
    torch.manual_seed(0)
    return Heads(8, 2, batch_first=batch_first, **options).train()


def inputs_of(module, batched, batch_first):
    shape = ((BATCH, LENGTH) if batch_first else (LENGTH, BATCH)) if batched else (LENGTH,)
    return [torch.randn(*shape, size) for size in (8, module.kdim, module.vdim)]


def padding_of(kind, batched, dead):
    """The last key is hidden; in the first sample all are, if dead."""
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[:, -1] = True
    padding[0] |= dead
    padding = padding if batched else padding[0]
    return padding if kind == "bool" else torch.where(padding, -INF, 0.0)


def masks_of(kind, batched, dead, which):
    """key_padding_mask, attn_mask"""
    size = (LENGTH, LENGTH) if which != "3-D" else (HEADS * (BATCH if batched else 1), 3, 3)
    hidden = torch.ones(size, dtype=torch.bool).triu(1)
    hidden[..., 1, :] |= dead
    mask = hidden if kind == "bool" else torch.where(hidden, -INF, 0.0)
    padding = padding_of(kind, batched, dead)
    return (padding if which in ("padding", "both") else None), (mask if "p" not in which else None)


def run(module, inputs, **options):
    """The output, the weights and all gradients."""
    torch.manual_seed(2)
    leaves = [t.clone().requires_grad_() for t in inputs]
    output, weights = module(*leaves, **options)
    wanted = [*leaves, *module.parameters()]
    gradients = torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)
    return output.detach(), weights, gradients


KINDS = list(itertools.product(["bool", "float"], ["padding", "2-D", "3-D", "both"]))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("kind", "which"), KINDS)
@pytest.mark.parametrize("need_weights", [True, False, "each head"])
def test_heads_equal_torch(variant, kind, which, need_weights):
    """Where every query may look at something."""
    for batched, batch_first in [(True, True), (True, False), (False, False)]:
        module = heads(batch_first, **VARIANTS[variant])
        inputs = inputs_of(module, batched, batch_first)
        padding, mask = masks_of(kind, batched, False, which)
        options = {
            "key_padding_mask": padding,
            "attn_mask": mask,
            "need_weights": bool(need_weights),
            "average_attn_weights": need_weights != "each head",
        }
        actual = run(module, inputs, **options)
        module.function = F.multi_head_attention_forward
        torch.testing.assert_close(actual, run(module, inputs, **options))


def test_same_tensor_thrice_and_no_mask():
    module = heads()
    x = torch.randn(LENGTH, BATCH, 8)
    for need_weights in (True, False):
        actual = module(x, x, x, need_weights=need_weights)
        expected = F.multi_head_attention_forward(
            *(x, x, x, 8, 2, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0),
            *(module.out_proj.weight, module.out_proj.bias),
            need_weights=need_weights,
        )
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_is_causal():
    module = heads()
    inputs = inputs_of(module, True, False)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
    options = {"attn_mask": mask, "is_causal": True}
    for need_weights in (True, False):
        actual = run(module, inputs, need_weights=need_weights, **options)
        expected = run(module, inputs, need_weights=need_weights, attn_mask=mask)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("variant", ["plain", "no bias", "separate weights"])
@pytest.mark.parametrize(("kind", "which"), KINDS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_dead_queries_of_heads(variant, kind, which, need_weights):
    for batched, batch_first in [(True, True), (True, False), (False, False)]:
        module = heads(batch_first, **VARIANTS[variant])
        inputs = inputs_of(module, batched, batch_first)
        padding, mask = masks_of(kind, batched, True, which)
        output, weights, gradients = run(
            module, inputs, key_padding_mask=padding, attn_mask=mask, need_weights=need_weights
        )
        bias = module.out_proj.bias if module.out_proj.bias is not None else torch.zeros(8)
        output = output.transpose(0, 1) if batched and not batch_first else output
        dead = output[0] if which in ("padding", "both") and batched else output[..., 1, :]
        torch.testing.assert_close(dead, bias.detach().expand_as(dead))
        assert output.isfinite().all()
        assert all(g is None or g.isfinite().all() for g in gradients)
        if need_weights:
            assert (weights[..., 1, :] == 0).reshape(-1, LENGTH)[0].all()
            assert weights.isfinite().all()


def test_one_dead_head():
    """The other one still looks."""
    module = heads()
    inputs = inputs_of(module, False, False)
    mask = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.bool)
    mask[0, 1] = True
    for need_weights in (True, False):
        output, weights, _ = run(
            module, inputs, attn_mask=mask, need_weights=need_weights, average_attn_weights=False
        )
        assert output.isfinite().all()
        assert not torch.allclose(output[1], module.out_proj.bias)
        if need_weights:
            torch.testing.assert_close(weights[:, 1].sum(-1), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_padding_is_not_read(kind, need_weights):
    module = heads(batch_first=True)
    query, key, value = inputs_of(module, True, True)
    padding = padding_of(kind, True, False)
    hidden = padding_of("bool", True, False).unsqueeze(-1)
    filled = [torch.where(hidden, math.nan, t) for t in (key, value)]
    options = {"key_padding_mask": padding, "need_weights": need_weights}
    actual = run(module, [query, *filled], **options)
    expected = run(module, [query, *(torch.where(hidden, 0.0, t) for t in (key, value))], **options)
    torch.testing.assert_close(actual, expected)


@compiles
@pytest.mark.parametrize("need_weights", [True, False])
def test_heads_compile(need_weights):
    module = heads()
    x = torch.randn(LENGTH, BATCH, 8)
    padding = padding_of("bool", True, True)

    def call(x, padding):
        return multi_head_attention_forward(
            *(x, x, x, 8, 2, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0),
            *(module.out_proj.weight, module.out_proj.bias),
            key_padding_mask=padding,
            need_weights=need_weights,
        )

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, padding), call(x, padding))
    assert call(x, padding)[0].isfinite().all()


def test_heads_errors_are_torchs():
    module = heads()
    with pytest.raises(AssertionError, match="embedding dimension"):
        module(torch.ones(3, 2, 6), torch.ones(3, 2, 6), torch.ones(3, 2, 6))
    x = torch.ones(3, 2, 8)
    with pytest.raises((AssertionError, RuntimeError), match="key_padding_mask"):
        module(x, x, x, key_padding_mask=torch.ones(3, dtype=torch.bool))
