// log(x), and below + slope * (x - bound) where x < bound or x <= 0.

// log1p(f) = f - f*f/2 + f**3 * P(f) for |f| <= 1/3. P is the minimax polynomial for the error
// relative to log1p, highest power first: 2**-30 in float, 2**-62 in double.
template <class S> struct log_table;
template <> struct log_table<float> {
  // ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
  static constexpr float ln2_high = 0x1.62ep-1f, ln2_low = 0x1.0bfbe8p-15f;
  static constexpr float P[] = {0.12007236994595204f,  -0.1284505499537271f,  0.10754215356380322f,
                                -0.12195778908917112f, 0.1430445828472409f,   -0.16679578279242513f,
                                0.19999597702319727f,  -0.24999820270366623f, 0.33333335745154799f};
};
template <> struct log_table<double> {
  static constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double P[] = {
      0.081787362580843478,   -0.083124799073188861, 0.035314545683016457,  -0.038522657677673566,
      0.054770171763206906,   -0.057436147017567832, 0.058593935411809366,  -0.062311559530585731,
      0.066682675628405935,   -0.071440663276582667, 0.076922343067733213,  -0.083332833407078265,
      0.090909112692512588,   -0.10000001298552024,  0.1111111107104786,    -0.12499999980109592,
      0.14285714286132692,    -0.16666666666824164,  0.19999999999997914,   -0.24999999999999533,
      0.33333333333333337};
};

// x = m * 2**k with m in [2/3, 4/3); log x = k ln 2 + log m. The large terms are added with
// their rounding error kept, since k ln 2 and log m may nearly cancel.
template <class F> SAFEOPS_FN F log_of_positive(F x) {
  using S = scalar_of<F>;
  using I = int_of<F>;
  using layout = format<S>;
  using Bits = typename layout::Bits;
  using table = log_table<S>;
  constexpr Bits one = pattern_of_one<S>(), two_thirds = bitcast<Bits>(S(2) / S(3));

  const auto tiny = x < layout::smallest_normal;
  const I i = bits(F(tiny ? x * layout::two_to_mantissa : x));
  const I e = shift_right_unsigned(I(i + (one - two_thirds)), layout::mantissa) - Bits(layout::bias);
  const F f = bitcast<F>(i - (e << layout::mantissa)) - S(1);
  const F k = real<F>(e) - (tiny ? splat<F>(S(layout::mantissa)) : F{});

  F p = splat<F>(table::P[0]);
  for (int n = 1; n < int(sizeof(table::P) / sizeof(S)); ++n) p = fma(p, f, splat<F>(table::P[n]));

  const F high = k * table::ln2_high;
  const F head = high + f;
  const F lost = f - (head - high);
  const F cubic = fma(k, splat<F>(table::ln2_low), (f * f) * (f * p));
  return head + (lost + fma(f * S(-0.5), f, cubic));
}

template <class F> struct log_value {
  using S = scalar_of<F>;
  S bound, below, slope, limit;

  SAFEOPS_FN F operator()(F x) const {
    const auto guarded = (x < bound) | (x <= S(0));
    const F log = x <= format<S>::max ? log_of_positive(x) : x;
    return guarded ? outside(x) : log;
  }

  SAFEOPS_FN F outside(F x) const {
    if (slope == S(0)) return splat<F>(below);
    return saturate(fma(splat<F>(slope), x - bound, splat<F>(below)), finite(x), limit);
  }
};

template <class F> struct log_gradient {
  using S = scalar_of<F>;
  S bound, below, slope, limit;

  SAFEOPS_FN F operator()(F grad, F x) const {
    const auto guarded = (x < bound) | (x <= S(0));
    const F outside = slope == S(0) ? F{} : grad * slope;
    const F d = saturate(F(guarded ? outside : grad / x), finite(grad), limit);
    return grad == S(0) ? grad : d;
  }
};
