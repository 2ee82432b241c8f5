// One number at a time: F is float or double itself, where a CPU level has vectors. For every GPU,
// and for what is rare on the CPU. Included inside a namespace, after SAFEOPS_FN; so no include
// guard. Needs <cmath>, <cstdint> and <type_traits>.

template <class F> struct parts;
template <> struct parts<float> {
  using S = float;
  using I = int32_t;
};
template <> struct parts<double> {
  using S = double;
  using I = int64_t;
};

template <class F> using scalar_of = typename parts<F>::S;
template <class F> using int_of = typename parts<F>::I;

template <class S> struct uint_of_scalar;
template <> struct uint_of_scalar<float> { using type = uint32_t; };
template <> struct uint_of_scalar<double> { using type = uint64_t; };

template <class To, class From> constexpr SAFEOPS_FN To bitcast(From from) {
  return __builtin_bit_cast(To, from);
}

template <class I> SAFEOPS_FN I shift_right_unsigned(I i, int count) {
  return I(std::make_unsigned_t<I>(i) >> count);
}

SAFEOPS_FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
SAFEOPS_FN double fma(double a, double b, double c) { return ::fma(a, b, c); }
SAFEOPS_FN float root(float x) { return ::sqrtf(x); }
SAFEOPS_FN double root(double x) { return ::sqrt(x); }

// Where one is NaN, b; as the vectors have it.
template <class F> SAFEOPS_FN F larger(F a, F b) { return a > b ? a : b; }
template <class F> SAFEOPS_FN F smaller(F a, F b) { return a < b ? a : b; }

// All ones where a mask is false.
SAFEOPS_FN int unless(bool mask) { return int(mask) - 1; }

template <class I> SAFEOPS_FN bool any_greater(I a, I b) { return a > b; }
template <class S, class I> SAFEOPS_FN S lookup16(const S* table, I i) { return table[i & 15]; }
