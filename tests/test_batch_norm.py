"""Running statistics stay numbers, whatever the batch; else all is torch's."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from safeops import _route
from safeops.nn.functional.batch_normalization import batch_norm, batch_norm_training
from safeops.nn.functional.instance_normalization import instance_norm
from tests.cases import DTYPES
from tests.samples import label

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
SHAPES = [(6, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)]


@pytest.fixture(params=["look", "composite"])
def way(request, monkeypatch):
    if request.param == "composite":
        monkeypatch.setattr(_route, "is_compiling", lambda: True)
    return request.param


def statistics(dtype=torch.float32, channels=3):
    return torch.randn(channels).to(dtype), torch.rand(channels).to(dtype) + 0.5


def affine(dtype=torch.float32):
    return torch.randn(3).to(dtype).requires_grad_(), torch.randn(3).to(dtype).requires_grad_()


def run(function, x, running, weights, **options):
    """The output, the running statistics after it and the gradients."""
    running, x = copy.deepcopy(running), x.clone().requires_grad_()
    value = function(x, *running, *weights, **options)
    gradients = torch.autograd.grad(value.square().sum(), [x, *weights])
    return value.detach(), running, gradients


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("running_dtype", ["input's", "float32"])
@each_dtype
def test_batch_norm_equals_torch(way, dtype, running_dtype, shape):
    x, kind = torch.randn(shape).to(dtype), dtype if running_dtype == "input's" else torch.float32
    if dtype is torch.float64:
        kind = dtype
    for training in (True, False):
        given = x, statistics(kind), affine(kind)
        actual = run(batch_norm, *given, training=training, momentum=0.3)
        expected = run(F.batch_norm, *given, training=training, momentum=0.3)
        bound = 0 if way == "look" else 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("shape", SHAPES[1:])
@each_dtype
def test_instance_norm_equals_torch(way, dtype, shape):
    x, kind = torch.randn(shape).to(dtype), dtype
    for use_input_stats in (True, False):
        given = x, statistics(kind), affine(kind)
        actual = run(instance_norm, *given, use_input_stats=use_input_stats)
        expected = run(F.instance_norm, *given, use_input_stats=use_input_stats)
        bound = 0 if way == "look" else 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def test_instance_norm_of_bfloat16_with_float32_statistics():
    given = torch.randn(4, 3, 5).bfloat16(), statistics(), ()
    torch.testing.assert_close(run(instance_norm, *given), run(F.instance_norm, *given))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("function", [batch_norm, instance_norm])
@each_dtype
def test_a_bad_batch_is_not_learnt(way, dtype, function, bad):
    x = torch.randn(4, 3, 5).to(dtype)
    x[1, 2, 3] = bad
    mean, var = statistics(dtype)
    before = mean.clone(), var.clone()
    options = {"training": True} if function is batch_norm else {}
    value = function(x, mean, var, **options)
    assert torch.equal(mean, before[0])
    assert torch.equal(var, before[1])
    plain = F.batch_norm if function is batch_norm else F.instance_norm
    expected = plain(x, None, None, **options)
    assert torch.equal(value.isnan(), expected.isnan())
    assert value[:, :2].isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("bad", [None, math.nan])
@pytest.mark.parametrize("function", [batch_norm, instance_norm])
def test_compiled(function, bad):
    torch._dynamo.reset()
    options = {"training": True} if function is batch_norm else {}
    x = torch.randn(4, 3, 5)
    if bad is not None:
        x[0, 0, 0] = bad
    running = statistics()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    ours, theirs = copy.deepcopy(running), copy.deepcopy(running)
    value, expected = compiled(x, *ours, **options), function(x, *theirs, **options)
    torch.testing.assert_close(value, expected, equal_nan=True)
    torch.testing.assert_close(ours, theirs)
    if bad is not None:
        assert all(map(torch.equal, ours, running))


def test_says_whether_it_accepted(way):
    x = torch.randn(4, 3)
    _, accepted = batch_norm_training(x, *statistics(), None, None, 0.1, 1e-5)
    assert bool(accepted) is True
    x[0, 0] = math.nan
    _, accepted = batch_norm_training(x, *statistics(), None, None, 0.1, 1e-5)
    assert isinstance(accepted, torch.Tensor)
    assert bool(accepted) is False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_squares_that_overflow(way, dtype):
    x = torch.tensor([[1e30, 1.0], [-1e30, 3.0]], dtype=dtype, requires_grad=True)
    mean, var = torch.zeros(2), torch.ones(2)
    value = batch_norm(x, mean, var, training=True)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=dtype)
    torch.testing.assert_close(value, signs, atol=1e-4, rtol=1e-2)
    largest = torch.finfo(torch.float32).max
    torch.testing.assert_close(mean, torch.tensor([0.0, 0.2]))
    torch.testing.assert_close(var, torch.tensor([0.1 * largest, 1.1]))
    value.sum().backward()
    assert x.grad.isfinite().all()


def test_statistics_of_half_saturate(way):
    x = torch.tensor([[6e4], [-6e4]], dtype=torch.float16)
    mean, var = torch.zeros(1).half(), torch.ones(1).half()
    batch_norm(x, mean, var, training=True, momentum=1.0)
    assert var.item() == torch.finfo(torch.float16).max


def test_a_constant_channel_keeps_its_mean(way):
    x = torch.tensor([[3.0], [3.0]], requires_grad=True)
    mean, var = torch.zeros(1), torch.ones(1)
    value = batch_norm(x, mean, var, training=True, momentum=0.5, eps=1e-50)
    value.sum().backward()
    assert (value == 0).all()
    assert (x.grad == 0).all()
    torch.testing.assert_close((mean, var), (torch.tensor([1.5]), torch.tensor([0.5])))


@pytest.mark.parametrize("function", [batch_norm, instance_norm])
@each_dtype
def test_no_running_variance(function, dtype):
    """eps 0: 0 and the gradient 0, but NaN stays."""
    x = torch.ones(2, 2, 3, dtype=dtype)
    x[1, 0, 0] = math.nan
    x.requires_grad_()
    mean, var = torch.ones(2, dtype=dtype), torch.tensor([0.0, 1.0], dtype=dtype)
    weight, bias = torch.full((2,), 2.0, dtype=dtype), torch.full((2,), 5.0, dtype=dtype)
    options = {} if function is batch_norm else {"use_input_stats": False}
    value = function(x, mean, var, weight, bias, eps=0.0, **options)
    assert value[1, 0, 0].isnan()
    assert (value.nan_to_num(5.0) == 5).all()
    value[0].sum().backward()
    expected = torch.tensor([0.0, 2.0], dtype=dtype)[:, None].expand(2, 3)
    assert torch.equal(x.grad[0], expected)


@pytest.mark.parametrize("training", [True, False])
def test_without_statistics_and_channels_last(training):
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    if training:
        ours, theirs = (f(x, None, None, training=True) for f in (batch_norm, F.batch_norm))
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        assert torch.equal(instance_norm(x), F.instance_norm(x))
    else:
        with pytest.raises(RuntimeError):
            batch_norm(x, None, None)


def test_errors_are_torchs():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm(torch.ones(1, 3), None, None, training=True)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        instance_norm(torch.ones(2, 3, 1))
    with pytest.raises(RuntimeError):
        batch_norm(torch.ones(2, 3), torch.ones(2), torch.ones(2), training=True)
    with pytest.raises(RuntimeError):
        batch_norm(torch.ones(2, 3), None, None, torch.ones(4), training=True)


def test_transforms():
    x, weight = torch.randn(5, 4, 3), torch.randn(3)
    call = lambda x: batch_norm(x, None, None, weight, training=True)  # noqa: E731
    expected = torch.stack([F.batch_norm(one, None, None, weight, training=True) for one in x])
    torch.testing.assert_close(torch.func.vmap(call)(x), expected)
    gradient = torch.func.grad(lambda x: call(x).square().sum())(x[0])
    leaf = x[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(call(leaf).square().sum(), leaf)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("captured", [True, False])
def test_running_statistics_under_func_grad(captured):
    """Only torch's own op may write captured ones, so that those are not guarded."""
    x, running = torch.randn(4, 3), statistics()
    ours, theirs = copy.deepcopy(running), copy.deepcopy(running)
    call = lambda x, *running: batch_norm(x, *running, training=True).square().sum()  # noqa: E731
    if captured:
        torch.func.grad(lambda x: call(x, *ours))(x)
    else:
        torch.func.grad(call)(x, *ours)
    F.batch_norm(x, *theirs, training=True)
    torch.testing.assert_close(ours, theirs)


def test_running_statistics_under_vmap():
    x, many = torch.randn(2, 4, 3), [torch.stack([t, t]) for t in statistics()]
    ours, theirs = copy.deepcopy(many), copy.deepcopy(many)
    for function, running in ((batch_norm, ours), (F.batch_norm, theirs)):
        torch.func.vmap(lambda x, m, v, f=function: f(x, m, v, training=True))(x, *running)
    torch.testing.assert_close(ours, theirs)
