"""Rows of the ops without a kernel that take two arguments."""

import math

import mpmath
import torch

from tests.cases import Op, tiny, zeros
from tests.kernelless_unary import is_torch, where


def _pow_guard(o, x, p):
    whole = p == p.floor()
    return torch.where(whole, (x == 0) & (p < 0), x <= 0) | (p.isnan() & (x <= 0))


def _pow_x(m, g, x, p):
    return where(m, p != 0, lambda: g * (p * x ** (p - 1)), 0.0 * g)


def _pow_p(m, g, x, p):
    return where(m, x > 0, lambda: g * (x**p * m.log(abs(x))), 0.0 * g)


def _pow_steps(index, g, x, p):
    if index == 0:
        return x ** (p - 1), p * x ** (p - 1)
    return x**p, x**p * x.abs().log()


def _origin(o, x, y):
    return (x == 0) & (y == 0)


def _no_log(shift):
    def guard(o, x, y):
        return (y <= -shift) | ((x == 0) & (y == math.inf))

    return guard


def _product_outside(least):
    def value(o, x, y):
        return torch.where(x == 0, 0.0, x * least(o.dtype))

    def gradients(o, upstream, x, y):
        return torch.where(x == 0, 0.0, upstream * least(o.dtype)), torch.zeros_like(upstream)

    return dict(outside=value, outside_gradients=gradients)


def _same_infinity(o, x, y):
    return (x == y) & x.isinf()


def _halves(o, upstream, x, y):
    share = torch.where(x > 0, upstream / 2, 0.0)
    return share, share


def _log_sum(m, x, y, base):
    if is_torch(m):
        return (torch.logaddexp if base == math.e else torch.logaddexp2)(x, y)
    base = mpmath.e if base == math.e else base
    return max(x, y) + mpmath.log1p(base ** (-abs(x - y))) / mpmath.log(base)


def _share(m, g, x, y, base):
    if is_torch(m):
        return g * torch.sigmoid((x - y) * math.log(base))
    base = mpmath.e if base == math.e else base
    return g / (1 + base ** (y - x))


def log_sum(name, base):
    return Op(
        name=f"safe_{name}",
        torch=getattr(torch, name),
        value=lambda m, x, y: _log_sum(m, x, y, base),
        gradients=(
            lambda m, g, x, y: _share(m, g, x, y, base),
            lambda m, g, x, y: _share(m, g, y, x, base),
        ),
        steps=lambda i, g, x, y: (_share(torch, 1.0, *((x, y) if i == 0 else (y, x)), base),),
        guard=_same_infinity,
        outside=lambda o, x, y: x,
        outside_gradients=_halves,
        value_ulp=(math.inf, math.inf),
        gradient_ulp=(360.0, 360.0),
        options=({},),
        singular=(math.inf, -math.inf),
        inner=((1.0, -2.0, 0.3, 1.1), (0.5, -0.7, 2.0, -0.4)),
    )


def product(name, shift, log, op, least, y):
    return Op(
        name=f"safe_{name}",
        torch=op,
        value=lambda m, x, y: op(x, y) if is_torch(m) else x * log(m)(y),
        gradients=(lambda m, g, x, y: g * log(m)(y), lambda m, g, x, y: g * x / (shift + y)),
        steps=lambda index, g, x, y: (g * x,) if index else (log(torch)(y),),
        guard=_no_log(shift),
        **_product_outside(least),
        value_ulp=(2.5, 2.5),
        gradient_ulp=(2.5, 2.5),
        half_ulp=1.5,
        options=({},),
        singular=(-shift, -shift - 1),
        inner=((1.0, -2.0, 0.3, 1.1, 0.0), y),
    )


BINARY = (
    Op(
        name="safe_pow",
        torch=torch.pow,
        value=lambda m, x, p: x**p,
        gradients=(_pow_x, _pow_p),
        steps=_pow_steps,
        guard=_pow_guard,
        outside=lambda o, x, p: torch.where(p.isnan(), p, 0.0),
        outside_gradients=zeros,
        value_ulp=(2.5, 2.5),
        gradient_ulp=(360.0, 5.0),
        half_ulp=2.0,
        options=({},),
        singular=(0.5, -1.0),
        inner=((1.0, 2.0, 0.3, 1.1, -2.0, -1.5), (0.5, -0.7, 2.0, -0.4, 0.3, -1.4)),
    ),
    Op(
        name="safe_atan2",
        torch=torch.atan2,
        value=lambda m, y, x: m.atan2(y, x),
        gradients=(
            lambda m, g, y, x: g * _over_square(m, x, y, x),
            lambda m, g, y, x: -g * _over_square(m, y, y, x),
        ),
        steps=lambda i, g, y, x: (_over_square(torch, (x, y)[i], y, x),),
        guard=_origin,
        outside=lambda o, y, x: torch.atan2(y, x),
        outside_gradients=zeros,
        value_ulp=(math.inf, math.inf),
        gradient_ulp=(4.0, 4.0),
        bitwise=False,
        options=({},),
        singular=(0.0,),
        inner=((1.0, -2.0, 0.3, 1.1, 0.0), (0.5, -0.7, 2.0, -0.4, 3.0)),
    ),
    Op(
        name="safe_hypot",
        torch=torch.hypot,
        value=lambda m, x, y: m.hypot(x, y),
        gradients=(
            lambda m, g, x, y: g * (x / m.hypot(x, y)),
            lambda m, g, x, y: g * (y / m.hypot(x, y)),
        ),
        steps=lambda i, g, x, y: ((x, y)[i] / torch.hypot(x, y),),
        guard=_origin,
        outside=lambda o, x, y: torch.zeros_like(x),
        outside_gradients=zeros,
        value_ulp=(1.5, 1.5),
        gradient_ulp=(3.0, 3.0),
        bitwise=False,
        options=({},),
        singular=(0.0,),
        inner=((1.0, -2.0, 0.3, 1.1, 0.0), (0.5, -0.7, 2.0, -0.4, 4.0)),
    ),
    product(
        "xlogy",
        0.0,
        lambda m: m.log,
        torch.xlogy,
        lambda dtype: math.log(tiny(dtype)),
        (0.5, -0.7, 2.0, 1.4, 0.9),
    ),
    product(
        "xlog1py",
        1.0,
        lambda m: m.log1p,
        torch.special.xlog1py,
        lambda dtype: math.log(torch.finfo(dtype).eps / 2),
        (0.5, -1.7, 2.0, -0.4, 0.9),
    ),
    log_sum("logaddexp", math.e),
    log_sum("logaddexp2", 2.0),
)


def _over_square(m, part, y, x):
    """part / (x² + y²), scaled in double where that is not exact."""
    if not is_torch(m):
        return part / (x * x + y * y)
    size = torch.maximum(x.abs(), y.abs())
    if size.isinf().any():
        size = torch.where(size.isinf(), 1.0, size)
    return part / size / (size * ((x / size) ** 2 + (y / size) ** 2))
