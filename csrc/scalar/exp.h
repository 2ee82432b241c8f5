// exp(x) = 2**k exp(r), with k the integer nearest to x / ln 2 and |r| <= ln(2) / 2;
// exp(r) = 1 + r + r**2 P(r). exp_polynomial.py makes the constants and says how exact P is: within
// 2**-34 in float, 2**-57 in double. Below `lowest` the result is 0 anyway.
template <class S> struct exp_table;
template <> struct exp_table<float> {
  static constexpr float lowest = -104;
  static constexpr float log2_e = 0x1.715476p+0f, ln2_high = 0x1.62e43p-1f,
                         ln2_low = -0x1.05c61p-29f;
  float P[6] = {0x1.9f0896p-13f, 0x1.6d8d06p-10f, 0x1.11127p-7f,
                0x1.55548ep-5f,  0x1.555554p-3f,  0x1p-1f};
};
template <> struct exp_table<double> {
  static constexpr double lowest = -746;
  static constexpr double log2_e = 0x1.71547652b82fep+0, ln2_high = 0x1.62e42fefa39efp-1,
                          ln2_low = 0x1.abc9e3b39803fp-56;
  double P[10] = {0x1.ad7f6f0e24922p-26, 0x1.28ad72cd4ab37p-22, 0x1.71df255235e0bp-19,
                  0x1.a0199a0c66195p-16, 0x1.a01a012a57b5ep-13, 0x1.6c16c1842a126p-10,
                  0x1.1111111127be5p-7,  0x1.555555555087cp-5,  0x1.55555555554fap-3,
                  0x1.000000000000ap-1};
};

#if !SAFEOPS_HAS_SCALED
// v * 2**k, rounded once (the first product is exact), or 0. k is an integer; |k| is at most twice
// what an exponent may be.
template <class F, class Mask> SAFEOPS_FN F scaled(F v, F k, Mask kept) {
  using S = scalar_of<F>;
  const F shift = splat<F>(format<S>::integer_shift);
  const F exponent = kept ? k : F{};
  const auto whole = bits(F(exponent + shift)) - bits(shift);
  const auto half = bits(F(fma(exponent, splat<F>(S(0.5)), shift))) - bits(shift);
  return kept ? v * power_of_two<F>(half) * power_of_two<F>(whole - half) : F{};
}
#endif

// 2**up exp(x), for x of which that is finite: nobody here exceeds 0 by more than rounding. What is
// 0 anyway never becomes a product: a processor takes a hundred times as long for one that
// underflows.
template <int up, class F> SAFEOPS_FN F exp_of(F x) {
  using S = scalar_of<F>;
  using table = exp_table<S>;
  constexpr table series;
  const F lowest = splat<F>(table::lowest), t = larger(lowest, x);
  const F shift = splat<F>(format<S>::integer_shift);
  const F shifted = fma(t, splat<F>(table::log2_e), shift), k = shifted - shift;
  const F r = fma(k, splat<F>(-table::ln2_low), fma(k, splat<F>(-table::ln2_high), t));

  F p = splat<F>(series.P[0]);
  for (int d = 1; d < int(sizeof series.P / sizeof(S)); ++d) p = fma(p, r, splat<F>(series.P[d]));
  return scaled(F(fma(r * r, p, r) + S(1)), F(shifted - (shift - S(up))), !(x < lowest));
}

// Exponentials are kept 2**100 times as large, for the same reason: then neither they nor what they
// are corrected by is subnormal.
constexpr int kUp = 100;
constexpr double kDown = 0x1p-100;

// v / 2**100, rounded once; a subnormal result is put together from its bits.
template <class F> SAFEOPS_FN F brought_down(F v) {
  using S = scalar_of<F>;
  using layout = format<S>;
  constexpr S normal = layout::smallest_normal / S(kDown), one = layout::two_to_mantissa;
  const F size = magnitude(v);
  if (!any_greater(bits(splat<F>(normal)), bits(size))) return v * S(kDown);
  const auto tiny = size < normal;
  const F units = (tiny ? size : F{}) * (one / normal);
  const auto pattern = bits(F(units + one)) - bits(splat<F>(one));
  const F others = bitcast<F>(bits(v) & unless(tiny));  // a compiler would see through a choice
  return tiny ? with_sign(bitcast<F>(pattern), v) : others * S(kDown);
}
