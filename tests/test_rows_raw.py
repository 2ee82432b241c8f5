"""The raw row ops and their fakes: opcheck, fake and meta tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from tests.cases import DTYPES
from tests.routes import Recorder
from tests.row_cases import LOGSUMEXP, ROW_OPS
from tests.row_samples import random_mask, scores
from tests.samples import label

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dim = pytest.mark.parametrize("dim", [0, -1])


@each_op
@each_dim
@pytest.mark.parametrize("masked", [False, True])
def test_meta_and_fake_tensors(op, dim, masked):
    shape, kept = (3, 4), (3, 4) if not op.reduces else (4,) if dim == 0 else (3,)
    mask = torch.ones(3, 1, dtype=torch.bool, device="meta") if masked else None
    value = op.function(torch.empty(shape, device="meta", dtype=torch.bfloat16), dim, mask=mask)
    assert (value.shape, value.dtype, value.device.type) == (kept, torch.bfloat16, "meta")
    with FakeTensorMode():
        x = torch.empty(shape, requires_grad=True)
        mask = torch.ones(3, 1, dtype=torch.bool) if masked else None
        value = op.function(x, dim, mask=mask)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    assert [t.shape for t in (value, gradient)] == [kept, shape]


def recorded(op, x, **options):
    """The raw ops of forward and backward, as a call runs them, with their arguments."""
    x = x.requires_grad_()
    with Recorder() as recorder:
        value = op.function(x, **options)
        value.backward(torch.ones_like(value))
    assert recorder.names == {op.raw, op.backward}
    return recorder.calls


RAW = {
    "plain": (lambda: scores(3, 4), {"dim": -1}),
    "first dim": (lambda: scores(3, 4, dtype=torch.bfloat16), {"dim": 0}),
    "transposed": (lambda: scores(3, 4, 5).transpose(0, 2), {"dim": 1}),
    "masked": (lambda: scores(3, 4), {"dim": -1, "mask": random_mask(3, 4)}),
    "broadcast mask": (lambda: scores(2, 3, 4), {"dim": 1, "mask": random_mask(3, 1)}),
    "empty": (lambda: torch.empty(0, 3), {"dim": 0}),
    "no dimensions": (lambda: torch.tensor(1.0), {"dim": 0}),
}


@each_op
@pytest.mark.parametrize("case", RAW)
@pytest.mark.parametrize("which", [0, 1], ids=["value", "backward"])
def test_raw_ops_pass_opcheck(kernel, op, case, which):
    make, options = RAW[case]
    raw, arguments = recorded(op, make(), **options)[which]
    plain = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)
    opcheck(raw, plain)


@pytest.mark.parametrize("keepdim", [False, True])
def test_raw_reduction_over_several_dims_passes_opcheck(kernel, keepdim):
    for raw, arguments in recorded(LOGSUMEXP, scores(3, 4, 5), dim=(2, 0), keepdim=keepdim):
        plain = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)
        opcheck(raw, plain)


@each_op
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_fakes_have_the_strides_of_the_kernels(kernel, op, dtype):
    x = scores(3, 4, 5, dtype=dtype).transpose(0, 2)
    for raw, arguments in recorded(op, x, dim=1, mask=random_mask(4, 1)):
        tensors = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
        real = raw(*tensors)
        with FakeTensorMode() as mode:
            wrap = lambda a: mode.from_tensor(a) if isinstance(a, torch.Tensor) else a  # noqa: E731
            fake = raw(*map(wrap, tensors))
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
