"""Rows of the ops without a kernel that take one argument."""

import math

import mpmath
import torch

import safeops
from tests.cases import Op, one_sided, tiny, zeros

POLE = dict(options=({}, {"eps": 1e-3}, {"fill": -2.5}))
SOME = ({}, {"eps": 1e-3}, {"fill": -2.5}, {"eps": 0.5, "extend": "linear"})


def _largest(o, x):
    """Of an infinite argument the slope is infinite."""
    return torch.full_like(x, torch.finfo(o.dtype).max).masked_fill(x.isinf(), math.inf)


SATURATED = dict(  # the slope of an exponential saturates with its value
    guard=lambda o, x: x > math.log(torch.finfo(o.dtype).max),
    outside=lambda o, x: torch.full_like(x, math.inf),
    outside_gradients=lambda o, g, x: (g * _largest(o, x),),
    options=({},),
    singular=(1000.0,),
    inner=((0.2, 0.7, 3.0, -1.0, -4.0),),
)
UNIT = ({}, {"eps": 1e-3}, {"eps": 1e-9}, {"fill": 3.0})
BEYOND = (0.0, -0.0, -1.0, -math.inf)
BOTH_SIDES = ((0.2, 0.7, 3.0, -1.0, -4.0),)


def is_torch(m):
    return m is torch


def _log(base):
    """x -> log to that base."""
    return lambda m, x: m.log(x) / (math.log(base) if is_torch(m) else mpmath.log(base))


def _scaled(base):
    return lambda m, g, x: g / (x * (math.log(base) if is_torch(m) else mpmath.log(base)))


def where(m, condition, value, other):
    """Lazy for numbers."""
    if is_torch(m):
        return torch.where(condition, value(), other)
    return value() if condition else other


def hyperbolic(name, slope):
    """Where it overflows, the slope does; the sign is that of x for the odd one of the two."""
    beyond = lambda o: math.log(2.0) + math.log(torch.finfo(o.dtype).max)  # noqa: E731
    sign = lambda which, x: x.sign() if which == "sinh" else torch.ones_like(x)  # noqa: E731
    largest = lambda o, g, x: (g * sign(slope, x) * _largest(o, x),)  # noqa: E731
    return Op(
        name=f"safe_{name}",
        torch=getattr(torch, name),
        value=lambda m, x: getattr(m, name)(x),
        gradients=(lambda m, g, x: g * getattr(m, slope)(x),),
        value_ulp=(2.5, 2.5),
        gradient_ulp=(4.0,),
        guard=lambda o, x: x.abs() > beyond(o),
        outside=lambda o, x: sign(name, x) * math.inf,
        outside_gradients=largest,
        options=({},),
        singular=(1000.0, -1000.0),
        inner=BOTH_SIDES,
    )


def logarithm(name, base):
    exact = {2: math.log2, 10: math.log10}[base]
    slope = lambda e: 1 / (e * math.log(base))  # noqa: E731
    return Op(
        name=f"safe_{name}",
        torch=getattr(torch, name),
        value=_log(base),
        gradients=(_scaled(base),),
        steps=lambda index, g, x: (x * math.log(base),),
        **one_sided(exact, slope, lambda dtype: exact(tiny(dtype))),
        value_ulp=(1.5, 1.5),
        gradient_ulp=(2.5,),
        options=SOME,
        singular=BEYOND,
        inner=BOTH_SIDES,
    )


def _log1p_bound(o):
    compute = torch.float64 if o.dtype is torch.float64 else torch.float32
    return torch.tensor(o.e - 1, dtype=torch.float64).to(compute).item()


def _log1p_outside(o, x):
    if o.fill is not None:
        return torch.full_like(x, o.fill)
    below = math.log(o.e or torch.finfo(o.dtype).eps / 2)
    return below + (1 + x - o.e) / o.e if o.extend == "linear" else 0 * x.sign() + below


def _log1p_outside_gradients(o, upstream, x):
    return (upstream / o.e,) if o.extend == "linear" else zeros(o, upstream, x)


def _rsqrt_outside(o, x):
    held = o.fill if o.fill is not None else 1 / math.sqrt(o.e) if o.e else 0.0
    return torch.full_like(x, held)


def _unit_guard(o, x):
    compute = torch.float64 if o.dtype is torch.float64 else torch.float32
    bound = torch.tensor(1 - o.e, dtype=torch.float64).to(compute).item()
    return (x.abs() > bound) | (x.abs() >= 1)


def _ends(end):
    """The value outside: a constant on each side, `end`(options) -> (low, high)."""

    def value(o, x):
        low, high = (o.fill, o.fill) if o.fill is not None else end(o)
        return torch.where(x < 0, low, torch.full_like(x, high))

    return value


def _acos_beside(e):
    return 2 * math.asin(math.sqrt(e / 2))


def _atanh_end(o):
    e = o.e or torch.finfo(o.dtype).eps / 2
    return 0.5 * (math.log(2 - e) - math.log(e))


def _acosh_guard(o, x):
    compute = torch.float64 if o.dtype is torch.float64 else torch.float32
    return (x < torch.tensor(1 + o.e, dtype=torch.float64).to(compute).item()) | (x <= 1)


def _acosh_outside(o, x):
    return torch.full_like(x, 2 * math.asinh(math.sqrt(o.e / 2)) if o.fill is None else o.fill)


def inside_one(name, slope, end, **rest):
    return Op(
        name=f"safe_{name}",
        torch=getattr(torch, name),
        value=lambda m, x: getattr(m, name)(x),
        gradients=(slope,),
        guard=_unit_guard,
        outside=_ends(end),
        outside_gradients=zeros,
        options=UNIT,
        singular=(1.0, -1.0, 2.0, -math.inf),
        inner=((0.2, -0.7, 0.95, -1.5, 4.0),),
        safe=0.5,
        **rest,
    )


def _root(m, x):
    return m.sqrt((1 - x) * (1 + x))


def _logit_bounds(o):
    compute = torch.float64 if o.dtype is torch.float64 else torch.float32
    low = o.e
    return low, torch.tensor(1 - low, dtype=torch.float64).to(compute).item()


def _logit_guard(o, x):
    low, high = _logit_bounds(o)
    return (x <= 0) | (x >= 1) | (x < low) | (x > high)


def _logit_outside(o, x):
    low, high = (tiny(o.dtype), 1 - torch.finfo(o.dtype).eps / 2) if not o.e else _logit_bounds(o)
    at = lambda z: math.log(z) - math.log1p(-z)  # noqa: E731
    return torch.where(x < 0.5, at(low), torch.full_like(x, at(high)))


UNARY = (
    logarithm("log2", 2),
    logarithm("log10", 10),
    Op(
        name="safe_log1p",
        torch=torch.log1p,
        value=lambda m, x: m.log1p(x),
        gradients=(lambda m, g, x: g / (1 + x),),
        guard=lambda o, x: (x < _log1p_bound(o)) | (x <= -1),
        outside=_log1p_outside,
        outside_gradients=_log1p_outside_gradients,
        value_ulp=(1.5, 1.5),
        gradient_ulp=(1.5,),
        options=SOME,
        singular=(-1.0, -2.0, -math.inf),
        inner=((0.2, -0.3, 3.0, -1.5, -4.0),),
    ),
    Op(
        name="safe_rsqrt",
        torch=torch.rsqrt,
        value=lambda m, x: 1 / m.sqrt(x),
        gradients=(lambda m, g, x: -g / (2 * m.sqrt(x) * x),),
        guard=lambda o, x: (x < o.e) | (x <= 0),
        outside=_rsqrt_outside,
        outside_gradients=zeros,
        value_ulp=(1.5, 1.5),
        gradient_ulp=(5.0,),
        half_ulp=2.0,
        **POLE,
        singular=BEYOND,
        inner=BOTH_SIDES,
    ),
    Op(
        name="safe_exp",
        torch=torch.exp,
        value=lambda m, x: m.exp(x),
        gradients=(lambda m, g, x: g * m.exp(x),),
        steps=lambda index, g, x: (x.exp(),),
        value_ulp=(1.5, 1.5),
        gradient_ulp=(4.0,),
        keeps_result=True,
        **SATURATED,
    ),
    Op(
        name="safe_expm1",
        torch=torch.expm1,
        value=lambda m, x: m.expm1(x),
        gradients=(lambda m, g, x: g * m.exp(x),),
        steps=lambda index, g, x: (x.exp(),),
        value_ulp=(1.5, 1.5),
        gradient_ulp=(4.0,),
        **SATURATED,
    ),
    hyperbolic("cosh", "sinh"),
    hyperbolic("sinh", "cosh"),
    inside_one(
        "acos",
        lambda m, g, x: -g / _root(m, x),
        lambda o: (math.pi - _acos_beside(o.e), _acos_beside(o.e)),
        value_ulp=(1.5, 1.5),
        gradient_ulp=(3.0,),
    ),
    inside_one(
        "asin",
        lambda m, g, x: g / _root(m, x),
        lambda o: (_acos_beside(o.e) - math.pi / 2, math.pi / 2 - _acos_beside(o.e)),
        value_ulp=(1.5, 1.5),
        gradient_ulp=(3.0,),
    ),
    inside_one(
        "atanh",
        lambda m, g, x: g / ((1 - x) * (1 + x)),
        lambda o: (-_atanh_end(o), _atanh_end(o)),
        value_ulp=(1.5, 1.5),
        gradient_ulp=(2.5,),
    ),
    Op(
        name="safe_acosh",
        torch=torch.acosh,
        value=lambda m, x: m.acosh(x),
        gradients=(lambda m, g, x: g / (m.sqrt(x - 1) * m.sqrt(x + 1)),),
        guard=_acosh_guard,
        outside=_acosh_outside,
        outside_gradients=zeros,
        value_ulp=(1.5, 1.5),
        gradient_ulp=(4.0,),
        options=UNIT,
        singular=(1.0, 0.0, -math.inf),
        inner=((1.2, 7.0, 3.0, 0.5, -4.0),),
        safe=2.0,
    ),
    Op(
        name="safe_logit",
        torch=torch.logit,
        value=lambda m, x: m.log(x) - m.log1p(-x),
        gradients=(lambda m, g, x: g / (x * (1 - x)),),
        guard=_logit_guard,
        outside=_logit_outside,
        outside_gradients=zeros,
        value_ulp=(math.inf, math.inf),
        gradient_ulp=(2.5,),
        torch_half_ulp=1024.0,  # 6, but for its clamp near 1/2
        options=({}, {"eps": 1e-3}),
        singular=(0.0, 1.0, -1.0, 2.0, math.inf),
        inner=((0.2, 0.7, 0.9, -1.0, 4.0),),
        safe=0.5,
    ),
    Op(
        name="safe_entr",
        torch=torch.special.entr,
        value=lambda m, x: -x * m.log(x),
        gradients=(lambda m, g, x: -g * (1 + m.log(x)),),
        guard=lambda o, x: x <= 0,
        outside=lambda o, x: torch.zeros_like(x),
        outside_gradients=zeros,
        value_ulp=(2.5, 2.5),
        gradient_ulp=(math.inf,),
        half_ulp=2.0,
        options=({},),
        singular=BEYOND,
        inner=BOTH_SIDES,
    ),
)


def power(p):
    """x ** p, by a number."""
    whole = p == int(p)
    guard = (lambda o, x: (x == 0) & (p < 0)) if whole else (lambda o, x: x <= 0)
    return Op(
        name=f"safe_pow({p})",
        call=lambda x: safeops.safe_pow(x, p),
        torch=lambda x: torch.pow(x, p),
        value=lambda m, x: x**p,
        gradients=(lambda m, g, x: g * (p * x ** (p - 1)),),
        steps=lambda index, g, x: (x ** (p - 1), p * x ** (p - 1)),
        guard=guard,
        outside=lambda o, x: torch.zeros_like(x),
        outside_gradients=zeros,
        value_ulp=(2.5, 2.5),
        gradient_ulp=(3.5,),
        half_ulp=2.0,
        options=({},),
        singular=(0.0,) if whole else BEYOND,
        inner=BOTH_SIDES,
    )


POWERS = tuple(power(p) for p in (2, 3, -1, 0.5, -0.5, 1.5))
