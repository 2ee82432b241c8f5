// x / y. Where |y| < bound or y == 0: x / copysign(bound, y) if hold, else fill (NaN for a NaN x).

template <class F> struct div_value {
  using S = scalar_of<F>;
  S bound, fill, hold, limit;

  SAFEOPS_FN F operator()(F x, F y) const {
    const auto outside = guarded(magnitude(y), bound);
    if (hold != S(0)) {
      return saturate(x / (outside ? with_sign(splat<F>(bound), y) : y), finite(x), limit);
    }
    return saturate(F((outside & (x == x)) ? splat<F>(fill) : x / y), finite(x), limit);
  }
};

// To x: grad / y. To y: -grad * x / y**2. With r = 1 / y, grad * r and one correction is the
// correctly rounded quotient, so that one division serves both. Where an operand is very large or
// small, the same steps run on the mantissas and the exponents come back at the end: neither the
// product nor the square overflows or underflows on the way, and the bits are the same.
template <class F> struct div_gradient {
  using S = scalar_of<F>;
  S bound, fill, hold, limit;

  template <int wanted> SAFEOPS_FN void operator()(F grad, F x, F y, F* to_x, F* to_y) const {
    const auto outside = guarded(magnitude(y), bound);
    const auto zero = grad == S(0);
    const F held = outside ? (hold != S(0) ? with_sign(splat<F>(bound), y) : splat<F>(1)) : y;
    F dx, dy{};
    if (wanted == 1) {
      dx = saturate(grad / held, finite(grad), limit);
    } else {
      both(grad, x, held, &dx, &dy);
    }
    *to_x = hold != S(0) ? (zero ? F{} : dx) : (zero | outside ? F{} : dx);
    *to_y = zero | outside ? F{} : F{} - dy;
  }

  SAFEOPS_FN void both(F grad, F x, F y, F* dx, F* dy) const {
    const F g = grad == S(0) ? splat<F>(1) : grad, n = x == S(0) ? splat<F>(1) : x;
    if (ordinary(g, n, y)) {
      const F r = S(1) / y, q = corrected(g, y, r);
      *dx = saturate(q, q == q, limit);
      *dy = saturate(F(x == S(0) ? F{} : q * corrected(n, y, r)), q == q, limit);
    } else {
      *dx = saturate(grad / y, finite(grad), limit);
      *dy = extraordinary(grad, x, y);
    }
  }

  // All between 2**-62 and 2**62 in float, so that no step leaves the normal range.
  static SAFEOPS_FN bool ordinary(F g, F n, F y) {
    using I = int_of<F>;
    using layout = format<S>;
    constexpr auto reach = typename layout::Bits(layout::bias / 2 - 1) << layout::mantissa;
    const I a = bits(magnitude(g)), b = bits(magnitude(n)), c = bits(magnitude(y));
    const I ab = a > b ? a : b, most = ab > c ? ab : c;
    const I ba = a < b ? a : b, least = ba < c ? ba : c;
    return !any_greater(most, I(I{} + (pattern_of_one<S>() + reach))) &&
           !any_greater(I(I{} + (pattern_of_one<S>() - reach)), least);
  }

  static SAFEOPS_FN F corrected(F g, F y, F r) {
    const F q = g * r;
    return fma(fma(-y, q, g), r, q);
  }

  SAFEOPS_FN F extraordinary(F grad, F x, F y) const {
    const auto ordinary = finite(grad) & finite(x) & finite(y);
    const F d = x == S(0) ? F{} : saturate(scaled(grad, x, y), ordinary, limit);
    return ordinary ? d : special(grad, x, y);
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
    const F r = S(1) / d.mantissa;
    const F p = corrected(g.mantissa, d.mantissa, r) * corrected(n.mantissa, d.mantissa, r);
    return p * power_of_two<F>(half) * power_of_two<F>(I(e - half));
  }

  // Infinite or NaN operands: only the class of the result matters.
  static SAFEOPS_FN F special(F grad, F x, F y) {
    const F product = (grad / y) * x;
    return bitcast<F>(bits(product) ^ (bits(y) & sign_bit<S>()));
  }
};
