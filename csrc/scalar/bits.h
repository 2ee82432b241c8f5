// Numbers as bit patterns: sign, exponent, mantissa, range. F is float or double, or a vector of
// them; S is its scalar, I the integers of the same width. Included once per level, inside its
// namespace, after that level's fma, sqrt and bitcast; so no include guard.

template <class S> struct format;
template <> struct format<float> {
  using Bits = int32_t;
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float max = 0x1.fffffep+127f, smallest_normal = 0x1p-126f,
                         two_to_mantissa = 0x1p+23f;
  static constexpr float integer_shift = 0x1.8p+23f;
};
template <> struct format<double> {
  using Bits = int64_t;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double max = 0x1.fffffffffffffp+1023, smallest_normal = 0x1p-1022,
                          two_to_mantissa = 0x1p+52;
  static constexpr double integer_shift = 0x1.8p+52;
};

template <class F> SAFEOPS_FN F splat(scalar_of<F> value) { return value - F{}; }

template <class F> SAFEOPS_FN int_of<F> bits(F x) { return bitcast<int_of<F>>(x); }

template <class S> constexpr typename format<S>::Bits pattern_of_one() {
  return typename format<S>::Bits(format<S>::bias) << format<S>::mantissa;
}

template <class S> constexpr typename format<S>::Bits sign_bit() {
  return typename format<S>::Bits(typename uint_of_scalar<S>::type(1) << (8 * sizeof(S) - 1));
}

template <class F> SAFEOPS_FN F magnitude(F x) {
  return bitcast<F>(bits(x) & ~sign_bit<scalar_of<F>>());
}

template <class F> SAFEOPS_FN F with_sign(F size, F sign) {
  constexpr auto bit = sign_bit<scalar_of<F>>();
  return bitcast<F>((bits(size) & ~bit) | (bits(sign) & bit));
}

// The least bits of a magnitude that is no subnormal, of the dtype that M is in memory.
template <class M> constexpr auto smallest_normal_bits() {
  using S = scalar_of<typename M::F>;
  return bitcast<typename format<S>::Bits>(S(M::smallest_normal));
}

template <class F> SAFEOPS_FN auto finite(F x) { return magnitude(x) <= format<scalar_of<F>>::max; }

// An integer of less than mantissa - 1 bits as a float, without a conversion instruction.
template <class F> SAFEOPS_FN F real(int_of<F> i) {
  constexpr auto shift = format<scalar_of<F>>::integer_shift;
  return bitcast<F>(i + bitcast<typename format<scalar_of<F>>::Bits>(shift)) - shift;
}

// x < bound or x <= 0, in one comparison: x is at most the number below the bound.
template <class F> SAFEOPS_FN auto guarded(F x, scalar_of<F> bound) {
  using S = scalar_of<F>;
  const auto below = bitcast<typename format<S>::Bits>(bound) - 1;
  return x <= (bound > S(0) ? bitcast<S>(below) : S(0));
}

// 2**e for e in the normal range.
template <class F> SAFEOPS_FN F power_of_two(int_of<F> e) {
  using layout = format<scalar_of<F>>;
  return bitcast<F>((e + layout::bias) << layout::mantissa);
}

// v, held inside +-limit where `held`. That is rare enough for a branch.
template <class F, class Mask> SAFEOPS_FN F saturate(F v, Mask held, scalar_of<F> limit) {
  if (!any_greater(bits(magnitude(v)), bits(splat<F>(limit)))) return v;
  return (held & (magnitude(v) > limit)) ? with_sign(splat<F>(limit), v) : v;
}

// Where a one-sided op (log, sqrt) is guarded: its tangent, or a constant if run is 0.
template <class F, class S> SAFEOPS_FN F tangent(F x, S bound, S below, S run, S limit) {
  if (run == S(0)) return splat<F>(below);
  return saturate((x - bound) / run + below, finite(x), limit);
}

template <class F> SAFEOPS_FN F tangent_gradient(F grad, scalar_of<F> run) {
  return run == scalar_of<F>(0) ? F{} : grad / run;
}

// x = mantissa * 2**exponent with 1 <= |mantissa| < 2, for finite x != 0; subnormals too.
template <class F> struct Split {
  F mantissa;
  int_of<F> exponent;
};

template <class F> SAFEOPS_FN Split<F> split(F x) {
  using S = scalar_of<F>;
  using layout = format<S>;
  using Bits = typename layout::Bits;
  const auto tiny = magnitude(x) < layout::smallest_normal;
  const int_of<F> i = bits(F(tiny ? x * layout::two_to_mantissa : x));
  constexpr Bits exponent_mask = Bits(2 * layout::bias + 1);
  const int_of<F> shift =
      tiny ? int_of<F>{} + Bits(layout::bias + layout::mantissa) : int_of<F>{} + Bits(layout::bias);
  return {bitcast<F>((i & ~(exponent_mask << layout::mantissa)) | pattern_of_one<S>()),
          ((i >> layout::mantissa) & exponent_mask) - shift};
}

// x = mantissa * 2**exponent with 3/4 <= mantissa < 3/2, for finite x > 0; subnormals too. A level
// may bring instructions that give the same.
template <class F> struct Normalized { F mantissa, exponent; };

#if !SAFEOPS_HAS_NORMALIZED
template <class F> SAFEOPS_FN Normalized<F> normalized(F x) {
  using S = scalar_of<F>;
  using layout = format<S>;
  using Bits = typename layout::Bits;
  constexpr Bits to_half_way = pattern_of_one<S>() - bitcast<Bits>(S(0.75));
  const auto tiny = x < layout::smallest_normal;
  const int_of<F> i = bits(F(tiny ? x * layout::two_to_mantissa : x));
  const int_of<F> e =
      shift_right_unsigned(int_of<F>(i + to_half_way), layout::mantissa) - Bits(layout::bias);
  const F shift = tiny ? splat<F>(S(layout::mantissa)) : F{};
  return {bitcast<F>(i - (e << layout::mantissa)), real<F>(e) - shift};
}
#else
SAFEOPS_FN Normalized<float_v> normalized(float_v x) {
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  return {m, _mm512_getexp_ps(x) - _mm512_getexp_ps(m)};
}
SAFEOPS_FN Normalized<double_v> normalized(double_v x) {
  const __m512d m = _mm512_getmant_pd(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  return {m, _mm512_getexp_pd(x) - _mm512_getexp_pd(m)};
}
#endif
