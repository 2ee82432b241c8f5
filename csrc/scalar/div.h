// x / y. Where |y| < bound or y == 0: x / copysign(bound, y) if hold, else fill (NaN for a NaN x).

template <class F> struct div_value {
  using S = scalar_of<F>;
  S bound, fill, hold, limit;

  SAFEOPS_FN F operator()(F x, F y) const {
    const auto outside = guarded(magnitude(y), bound);
    const F held = outside ? with_sign(splat<F>(bound), y) : y;
    const F quotient = saturate(x / held, finite(x), limit);
    const F filled = x == x ? splat<F>(fill) : x;
    return outside & bool_mask<F>(hold == S(0)) ? filled : quotient;
  }
};

// To x: grad / y. To y: -grad * x / y**2, with the exponents kept apart so that neither the
// product nor the square overflows or underflows on the way.
template <class F> struct div_gradient {
  using S = scalar_of<F>;
  S bound, fill, hold, limit;

  SAFEOPS_FN F to_x(F grad, F y) const {
    const auto outside = guarded(magnitude(y), bound);
    const F held = outside ? with_sign(splat<F>(bound), y) : y;
    const F d = saturate(grad / held, finite(grad), limit);
    return (grad == S(0)) ? grad : outside & bool_mask<F>(hold == S(0)) ? F{} : d;
  }

  SAFEOPS_FN F to_y(F grad, F x, F y) const {
    const auto normal = finite(grad) & finite(x) & finite(y) & (x != S(0));
    const F d = normal ? saturate(scaled(grad, x, y), normal, limit) : special(grad, x, y);
    return guarded(magnitude(y), bound) | (grad == S(0)) ? F{} : -d;
  }

  static SAFEOPS_FN F scaled(F grad, F x, F y) {
    using I = int_of<F>;
    using Bits = typename format<S>::Bits;
    constexpr Bits most = 2 * (format<S>::bias - 1);
    const Split<F> g = split(grad), n = split(x), d = split(y);
    I e = g.exponent + n.exponent - 2 * d.exponent;
    e = e > most ? I{} + most : e;
    e = e < -most ? I{} - most : e;
    const I half = e >> 1;
    const F p = (g.mantissa * n.mantissa) / (d.mantissa * d.mantissa);
    return p * power_of_two<F>(half) * power_of_two<F>(I(e - half));
  }

  // Zero, infinite or NaN operands: only the class of the result matters.
  static SAFEOPS_FN F special(F grad, F x, F y) {
    const F product = (grad / y) * x;
    return bitcast<F>(bits(product) ^ (bits(y) & sign_bit<S>()));
  }
};
