"""One row an op: all that a test has to know about it. OPS is the list of those with a kernel;
the others are in kernelless_cases.py.

The formulas are written once, for mpmath and for float64 tensors: m is mpmath or torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

import safeops

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Op:
    """name, raw: the public name (behind it in brackets what else tells rows apart) and that of the
    raw ops, None for an op without a kernel.
    call: the function, if it is not the public one itself.
    torch: the op it is equal to, (*inputs).
    value, gradients: exact, (m, *inputs) and (m, upstream, *inputs).
    guard: mask of the guarded elements, (options, *inputs).
    outside, outside_gradients: what the op is there, (options, [upstream,] *inputs).
    value_ulp, gradient_ulp: bounds for float64 and float32; the value's on the torch formulas too.
    half_ulp: bound of the gradient of half types.
    bitwise: the value has torch's bits (on the kernel route too, unless torch_is_inexact).
    torch_is_inexact: torch takes it from a vector library that is not correctly rounded.
    torch_half_ulp: how far torch's own op is from the formulas in half types (without a kernel).
    options: variants of the keywords; the first is the default.
    singular: inputs at which torch's own op has no finite value or gradient.
    inner: float64 inputs for gradcheck, on both sides of the switch points.
    keeps_result: backward needs the result, which must not be changed in place.
    safe: an input that no option guards.
    steps: what torch's order computes on the way to a gradient, (index, upstream, *inputs): where
        that leaves the dtype's normal range, the gradient only is finite.
    """

    name: str
    raw: str | None = None
    call: Callable | None = None
    torch: Callable
    value: Callable
    gradients: tuple
    guard: Callable
    outside: Callable
    outside_gradients: Callable
    value_ulp: tuple
    gradient_ulp: tuple
    options: tuple
    singular: tuple
    inner: tuple
    half_ulp: float = 1.0
    bitwise: bool = True
    torch_is_inexact: bool = False
    torch_half_ulp: float = 1.0
    keeps_result: bool = False
    safe: float = 1.0
    steps: Callable = lambda index, upstream, *inputs: ()

    @property
    def public(self):
        return self.name.split("(")[0]

    @property
    def function(self):
        return self.call or getattr(safeops, self.public)

    @property
    def arity(self):
        return len(self.gradients)


@dataclass(frozen=True)
class Options:
    """The keywords of a call as the contract reads them: bounds rounded to their types."""

    dtype: torch.dtype
    eps: float | None = None
    fill: float | None = None
    extend: str = "clamp"
    min: float = -math.inf
    max: float = math.inf
    nan: float = math.nan

    @property
    def e(self):
        compute = torch.float64 if self.dtype is torch.float64 else torch.float32
        return torch.tensor(self.eps or 0.0, dtype=compute).item()

    def bound(self, value):
        limit = torch.finfo(self.dtype).max
        return torch.tensor(value, dtype=torch.float64).clamp(-limit, limit).to(self.dtype).item()


def tiny(dtype):
    """The smallest positive subnormal, as a float."""
    return torch.tensor(1).to(torch.int16 if dtype in HALF else _word(dtype)).view(dtype).item()


def _word(dtype):
    return torch.int64 if dtype is torch.float64 else torch.int32


def zeros(o, upstream, *inputs):
    return tuple(torch.zeros_like(upstream) for _ in inputs)


def one_sided(at, slope, default):
    """Value and gradient below the bound of an op that is guarded where x < e or x <= 0."""

    def value(o, x):
        if o.fill is not None:
            return torch.full_like(x, o.fill)
        below = at(o.e) if o.e else default(o.dtype)
        return below + slope(o.e) * (x - o.e) if o.extend == "linear" else 0 * x.sign() + below

    def gradients(o, upstream, x):
        linear = o.extend == "linear"
        return (upstream * slope(o.e),) if linear else zeros(o, upstream, x)

    guard = lambda o, x: (x < o.e) | (x <= 0)  # noqa: E731
    return dict(guard=guard, outside=value, outside_gradients=gradients)


def _held(o, y):
    return torch.copysign(torch.full_like(y, o.e), y)


def _div_outside(o, x, y):
    return x / _held(o, y) if o.fill is None else torch.where(x.isnan(), x, o.fill)


def _div_outside_gradients(o, upstream, x, y):
    to_x = upstream / _held(o, y) if o.fill is None else torch.zeros_like(upstream)
    return to_x, torch.zeros_like(upstream)


def _clip_guard(o, x):
    return ~((x >= o.bound(o.min)) & (x <= o.bound(o.max)))


def _clip_outside(o, x):
    return torch.where(x.isnan(), o.nan, x.clamp(o.bound(o.min), o.bound(o.max)))


ONE_SIDED = (
    {},
    {"eps": 1e-3},
    {"eps": 1e-8},
    {"fill": -2.5},
    {"eps": 0.5, "fill": 3.0},
    {"eps": 1e-3, "extend": "linear"},
    {"eps": 2.0, "extend": "linear"},
)

OPS = (
    Op(
        name="safe_log",
        raw="log",
        torch=torch.log,
        value=lambda m, x: m.log(x),
        gradients=(lambda m, g, x: g / x,),
        **one_sided(math.log, lambda e: 1 / e, lambda dtype: math.log(tiny(dtype))),
        value_ulp=(1.0, 1.5),
        bitwise=False,
        gradient_ulp=(1.0,),
        options=ONE_SIDED,
        singular=(0.0, -0.0, -1.0, -math.inf),
        inner=((0.2, 0.7, 3.0, -1.0, -4.0),),
    ),
    Op(
        name="safe_sqrt",
        raw="sqrt",
        torch=torch.sqrt,
        value=lambda m, x: m.sqrt(x),
        gradients=(lambda m, g, x: g / (2 * m.sqrt(x)),),
        **one_sided(math.sqrt, lambda e: 0.5 / math.sqrt(e), lambda dtype: 0.0),
        value_ulp=(0.5, 1.0),
        gradient_ulp=(2.0,),
        half_ulp=2.0,
        torch_is_inexact=True,
        keeps_result=True,
        options=ONE_SIDED,
        singular=(0.0, -0.0, -1.0, -math.inf),
        inner=((0.2, 0.7, 3.0, -1.0, -4.0),),
    ),
    Op(
        name="safe_div",
        raw="div",
        torch=torch.div,
        value=lambda m, x, y: x / y,
        gradients=(lambda m, g, x, y: g / y, lambda m, g, x, y: -(g / y) * (x / y)),
        guard=lambda o, x, y: (y == 0) | (y.abs() < o.e),
        outside=_div_outside,
        outside_gradients=_div_outside_gradients,
        value_ulp=(0.5, 0.5),
        gradient_ulp=(1.0, 2.5),
        options=(
            {"fill": 0.0},
            {"fill": 1.5},
            {"eps": 0.6, "fill": -3.0},
            {"eps": 0.6},
            {"eps": 1e-8},
        ),
        singular=(0.0, -0.0),
        inner=((1.0, -2.0, 0.3, 1.1), (0.5, -0.7, 2.0, -0.4)),
    ),
    Op(
        name="finite_clip",
        raw="finite_clip",
        torch=lambda x: x.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max),
        value=lambda m, x: x,
        gradients=(lambda m, g, x: g,),
        guard=_clip_guard,
        outside=_clip_outside,
        outside_gradients=zeros,
        value_ulp=(0.0, 0.0),
        gradient_ulp=(0.0,),
        half_ulp=0.0,
        options=(
            {},
            {"min": -1.0, "max": 0.3},
            {"nan": 0.5},
            {"min": -math.inf, "max": 1e300, "nan": -1.0},
            {"min": 0.1, "nan": 7.0},
        ),
        singular=(math.nan, math.inf, -math.inf),
        inner=((-3.0, -0.5, 0.25, 2.0),),
    ),
)

UNARY = tuple(op for op in OPS if op.arity == 1)
OP = {op.name: op for op in OPS}
