// Elements of gradients: which sums of their powers are right, and how they are multiplied.
// Included after bits.h and multi_tensor.h; F and S are as there.

// Of doubles, a sum is right if no power overflowed and those that vanished do not matter.
template <class S> SAFEOPS_FN bool is_right(double sum) {
  if (sizeof(S) < sizeof(double)) return sum <= format<double>::max;
  return sum >= 0x1p-900 && sum <= 0x1p+1000;
}

// The exponent of the largest magnitude, of which no power leaves the range of a double once it is
// scaled; 0 where none does unscaled.
template <class S> SAFEOPS_FN int exponent_of(double largest) {
  int exponent = 0;
  if (sizeof(S) == sizeof(double)) ::frexp(largest, &exponent);
  return exponent;
}

// x * 2**-exponent, and 0 where x is not finite.
template <class F> struct lowered_value {
  using S = scalar_of<F>;
  S first, second;

  explicit SAFEOPS_FN lowered_value(int exponent)
      : first(::ldexp(1.0, -(exponent / 2))), second(::ldexp(1.0, exponent / 2 - exponent)) {}

  SAFEOPS_FN F operator()(F x) const { return finite(x) ? x * first * second : F{}; }
};

// x * factor, and 0 where that is not finite.
template <class F> struct scaled_value {
  using S = scalar_of<F>;
  S high, low, rest;

  explicit SAFEOPS_FN scaled_value(const Factor& factor)
      : high(factor.value), low(factor.value - high), rest(factor.rest) {}

  SAFEOPS_FN F operator()(F x) const {
    const F product = fma(x, splat<F>(high), x * low) * rest;
    return finite(x) ? product : F{};
  }
};
