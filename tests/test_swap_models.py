"""Models that are healthy stay what they are: swapped equals unswapped, and undone is as before."""

import copy
import pickle

import pytest
import torch

import safeops
from tests.samples import label
from tests.swap_models import BUILT, built, trained

pytestmark = pytest.mark.filterwarnings("ignore")
each_model = pytest.mark.parametrize("name", BUILT)


def outcome(name, dtype, change=lambda net: None, train=True):
    """Loss and gradients of one step."""
    net, loss, batch = built(name, dtype)
    net.train(train)
    change(net)
    torch.manual_seed(1)
    x = batch()
    value = loss(net, x.to(dtype) if x.is_floating_point() else x)
    value.backward()
    return value.detach(), {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


@each_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_one_step_is_the_same(name, dtype, train):
    expected, gradients = outcome(name, dtype, train=train)
    value, found = outcome(name, dtype, safeops.swap_, train=train)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(value, expected, rtol=16 * eps, atol=0.0)
    assert list(found) == list(gradients)
    scale = max(gradient.abs().max().item() for gradient in gradients.values())
    for key, gradient in gradients.items():
        torch.testing.assert_close(found[key], gradient, rtol=32 * eps, atol=32 * eps * scale)


@each_model
def test_twenty_steps_are_the_same(name):
    net, loss, batch = built(name)
    expected = trained(net, loss, batch)
    net, loss, batch = built(name)
    report = safeops.swap_(net)
    assert report.replaced or report.forwards
    assert trained(net, loss, batch) == pytest.approx(expected, rel=1e-5)


def state_of(net):
    """Everything that a swap could touch, by identity."""
    return {
        name: (
            id(module),
            type(module),
            module.training,
            {key: id(value) for key, value in vars(module).items()},
            [id(hook) for hook in module._forward_hooks.values()],
            {key: id(value) for key, value in module._parameters.items()},
            {key: id(value) for key, value in module._buffers.items()},
        )
        for name, module in net.named_modules(remove_duplicate=False)
    }


@each_model
def test_undone_it_is_as_before(name):
    net, loss, batch = built(name)
    net.eval()
    x, before, text = batch(), state_of(net), repr(net)
    expected = loss(net, x)
    report = safeops.swap_(net)
    assert repr(net) == text
    assert list(net.state_dict()) == list(built(name)[0].state_dict())
    undone = safeops.unswap_(net)
    assert sorted(undone) == sorted(entry.name for entry in report.changed)
    assert state_of(net) == before
    assert torch.equal(loss(net, x), expected)


@each_model
def test_copies_and_files_stay_swapped(name, tmp_path):
    net, loss, batch = built(name)
    net.eval()
    safeops.swap_(net)
    x = batch()
    expected = loss(net, x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [type(m) for m in other.modules()] == [type(m) for m in net.modules()]
        assert torch.equal(loss(other, x), expected)
        assert safeops.unswap_(other)
        assert torch.equal(loss(other, x), expected) or name != "vision"


@each_model
def test_state_dicts_go_both_ways(name):
    net, *_ = built(name)
    swapped_one = copy.deepcopy(net)
    safeops.swap_(swapped_one)
    swapped_one.load_state_dict(net.state_dict())
    net.load_state_dict(swapped_one.state_dict())


@each_model
def test_a_report_does_the_same_again(name):
    net, *_ = built(name)
    report = safeops.swap_(net)
    other, *_ = built(name)
    again = safeops.swap_(other, report=report.to_json())
    assert again.changed == report.changed
    assert [type(m) for m in other.modules()] == [type(m) for m in net.modules()]
    third, *_ = built(name)
    assert safeops.swap_(third, report=report, dry_run=True).changed == report.changed
    assert [type(m) for m in third.modules()] == [type(m) for m in built(name)[0].modules()]
