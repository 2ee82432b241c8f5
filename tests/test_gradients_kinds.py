"""clip_grad_norm_ on every kind of gradient, and every way of giving the parameters."""

import math

import pytest
import torch
from torch import nn

import safeops
from tests.gradient_samples import (
    EDGES,
    WIDE,
    assert_clips,
    assert_close,
    assert_leaves,
    clip_on,
    dense,
    draw,
    exact_norm,
    parameters,
    unique,
)


def sparse(coalesced):
    """Two rows of a matrix, one of them given twice unless coalesced."""
    indices = torch.tensor([[1, 3, 4] if coalesced else [1, 3, 1]])
    gradient = torch.sparse_coo_tensor(indices, draw(3, 5), (6, 5), check_invariants=True)
    return gradient.coalesce() if coalesced else gradient


FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# lists of gradients, None is a parameter that has none
KINDS = {
    "one": lambda: [draw(5)],
    "no dimensions": lambda: [draw(), draw(seed=1)],
    "no elements": lambda: [draw(0), draw(3), draw(2, 0, 3)],
    "None": lambda: [None, draw(3), None, draw(2, 2)],
    "float64": lambda: [draw(17, dtype=torch.float64), draw(3, 5, dtype=torch.float64)],
    "float16": lambda: [draw(33, dtype=torch.float16), draw(4, 4, dtype=torch.float16)],
    "bfloat16": lambda: [draw(33, dtype=torch.bfloat16), draw(dtype=torch.bfloat16)],
    "dtypes": lambda: [draw(19, dtype=d, seed=i) for i, d in enumerate(FLOATING)],
    "narrow dtypes": lambda: [draw(19, dtype=d, seed=i) for i, d in enumerate(FLOATING[1:])],
    "complex64": lambda: [draw(7, dtype=torch.complex64), draw(3, dtype=torch.complex64, seed=1)],
    "complex128": lambda: [draw(7, dtype=torch.complex128), draw(3)],
    "conjugate": lambda: [draw(7, dtype=torch.complex64).conj(), draw(3)],
    "complex transposed": lambda: [draw(3, 5, dtype=torch.complex64).t(), draw(2)],
    "transposed": lambda: [draw(7, 5).t(), draw(3)],
    "permuted": lambda: [draw(2, 3, 4).permute(2, 0, 1), draw(3)],
    "channels last": lambda: [draw(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    "every second": lambda: [draw(4, 10)[:, ::2], draw(40)[1::2], draw(3)],
    "column": lambda: [draw(9, 7)[:, 3], draw(3)],
    "expanded": lambda: [draw(3, 1).expand(3, 4), draw(1).expand(5), draw(2)],
    "negated": lambda: [draw(7, dtype=torch.complex64).conj().imag, draw(3)],
    "with a history": lambda: [draw(5).requires_grad_() * 2, draw(3)],
    "off by one": lambda: [draw(41)[1:], draw(41, dtype=torch.float16)[3:]],
    "flat buffer": lambda: list(draw(1_000).split([1, 7, 500, 492])),
    "sparse": lambda: [sparse(True), draw(3)],
    "uncoalesced": lambda: [draw(3), sparse(False)],
    "sparse without values": lambda: [torch.zeros(3, 4).to_sparse(), draw(2)],
    "sparse numbers": lambda: [draw(4, 5).relu().to_sparse(), draw(2)],
    "thousand": lambda: [draw(1 + i % 7, seed=i) for i in range(1_000)],
    "edges": lambda: [draw(n, seed=n) for n in EDGES[:8]],
}

each_kind = pytest.mark.parametrize("kind", KINDS)
NO_KERNEL = ("complex64", "conjugate", "complex transposed")


def ulps(params):
    wide = any(p.grad is not None and p.grad.dtype in WIDE for p in params)
    return (8, 24) if wide else (1.0, 1.0)


def norm_of(params, p=2.0):
    return exact_norm(unique([p.grad for p in params]), p)


@each_kind
@pytest.mark.parametrize("p", [2, 0.5, math.inf])
def test_clipped(route, kind, p):
    """Twice, since the first clip may put another tensor into .grad."""
    params = parameters(*KINDS[kind]())
    for part in (3, 30):
        limit = float(norm_of(params, p) / part)
        assert_clips(safeops.clip_grad_norm_, params, limit, p, ulps=ulps(params))


@each_kind
def test_small_enough(route, kind):
    params = parameters(*KINDS[kind]())
    assert_leaves(safeops.clip_grad_norm_, params, 1e6, ulps=ulps(params))


@each_kind
def test_clipped_to_zero(route, kind):
    params = parameters(*KINDS[kind]())
    safeops.clip_grad_norm_(params, 0.0)
    assert all((dense(p.grad) == 0).all() for p in params if p.grad is not None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NO_KERNEL])
def test_kernels_take_what_they_can(kernel, kind):
    clip_on(kernel)(parameters(*KINDS[kind]()), 0.1)


def test_gaps_between_elements_are_left_alone(route):
    base = draw(6, 10)
    buffer = draw(200)
    before = base.clone(), buffer.clone()
    views = [base[1:5, 1:9:3], base[0:1, 2:4], buffer[3:50], buffer[51:100], buffer[120:121]]
    assert_clips(clip_on(route), parameters(*views), 0.5)
    written = torch.zeros(6, 10, dtype=torch.bool), torch.zeros(200, dtype=torch.bool)
    written[0][1:5, 1:9:3] = written[0][0:1, 2:4] = True
    for part in (slice(3, 50), slice(51, 100), slice(120, 121)):
        written[1][part] = True
    assert torch.equal(base[~written[0]], before[0][~written[0]])
    assert torch.equal(buffer[~written[1]], before[1][~written[1]])


def test_tied_parameters_count_once(route):
    """The same parameter twice, and two that have the same gradient."""
    one, other, third = parameters(torch.tensor([3.0]), torch.tensor([4.0]), torch.ones(1))
    third.grad = one.grad
    assert clip_on(route)([one, other, one, third], 1.0) == 5
    assert one.grad is third.grad
    torch.testing.assert_close(one.grad, torch.tensor([0.6]))
    torch.testing.assert_close(other.grad, torch.tensor([0.8]))


def test_tied_parameters_of_other_kinds(route):
    for gradient in (sparse(True), sparse(False), draw(4).expand(3, 4), draw(9, 7)[:, 3]):
        one, other = parameters(gradient, draw(2))
        assert_clips(clip_on(route), [one, other, one], 0.5)


def test_module(route):
    model = trained()
    exact = norm_of(model.parameters())
    for pairs in (False, True):
        before = [dense(p.grad) for p in model.parameters()]
        limit = float(exact / (4 if pairs else 2))
        clip_on(route)(model.named_parameters() if pairs else model, limit)
        for param, gradient in zip(model.parameters(), before, strict=True):
            assert_close(param.grad, gradient / 2, 3)


def trained():
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    model(draw(11, 5)).square().sum().backward()
    return model


WAYS = {
    "list": list,
    "tuple": tuple,
    "generator": lambda params: (p for p in params),
    "iterator": iter,
    "dict values": lambda params: dict(enumerate(params)).values(),
    "parameter list": nn.ParameterList,
    "pairs": lambda params: [(f"p{i}", p) for i, p in enumerate(params)],
    "generator of pairs": lambda params: ((f"p{i}", p) for i, p in enumerate(params)),
    "items": lambda params: {f"p{i}": p for i, p in enumerate(params)}.items(),
    "plain leaves": lambda params: [leaf(p) for p in params],
}


def leaf(param):
    """A tensor that shares the gradient."""
    plain = param.detach().clone().requires_grad_()
    plain.grad = param.grad
    return plain


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_give_parameters(route, way):
    params = parameters(draw(5), draw(2, 3, seed=1))
    given = WAYS[way](params)
    assert_clips(lambda _, *args: clip_on(route)(given, *args), params, 0.5)


def test_one_tensor(route):
    (param,) = parameters(draw(4))
    assert_clips(lambda _, *args: clip_on(route)(param, *args), [param], 0.5)


def test_nothing_to_clip():
    """As torch: 0, and a warning if it was an empty generator."""
    for empty in ([], (), {}.items()):
        norm = safeops.clip_grad_norm_(empty, 1.0)
        assert (norm.item(), norm.dtype, norm.shape) == (0.0, torch.float32, ())
    with pytest.warns(UserWarning, match="empty generator") as seen:
        assert safeops.clip_grad_norm_((p for p in ()), 1.0) == 0
    assert seen[0].filename == __file__
    params = parameters(None, None)
    norm = safeops.clip_grad_norm_(params, 1.0)
    assert (norm.item(), norm.dtype, norm.shape) == (0.0, torch.float32, ())
    assert all(p.grad is None for p in params)


def test_frozen_parameters_are_passed_over(route):
    params = parameters(draw(5), draw(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    assert_clips(lambda _, *args: clip_on(route)([frozen, *params, frozen], *args), params, 0.5)
    assert torch.equal(frozen, torch.ones(3))


def test_a_frozen_parameter_that_has_a_gradient(route):
    """It is one of the gradients, as in torch."""
    params = parameters(draw(5), draw(3))
    params[0].requires_grad_(False)
    assert_clips(clip_on(route), params, 0.5)


def test_inside_no_grad_and_inference(route):
    params = parameters(draw(5), draw(3))
    with torch.no_grad():
        assert_clips(clip_on(route), params, 0.5)
    norm = safeops.clip_grad_norm_(params, 0.25)
    assert (norm.requires_grad, norm.grad_fn) == (False, None)


def test_foreach_is_without_effect(route):
    for foreach in (None, True, False):
        assert_clips(clip_on(route, foreach=foreach), parameters(draw(5), draw(3)), 0.5)


def test_arguments_by_position():
    """As torch.nn.utils.clip_grad_norm_."""
    (param,) = parameters(torch.tensor([3.0, -4.0]))
    assert safeops.clip_grad_norm_(param, 1.0, 1.0, False, None) == 7


@pytest.mark.parametrize("dtypes", [FLOATING, FLOATING[1:], FLOATING[2:]], ids=len)
def test_total_norm(route, dtypes):
    norm = clip_on(route)(parameters(*[draw(3, dtype=d) for d in reversed(dtypes)]), 9.0)
    assert norm.dtype is (torch.float64 if torch.float64 in dtypes else torch.float32)
    assert norm.device == torch.device("cpu")
