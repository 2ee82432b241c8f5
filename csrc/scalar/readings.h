// Readings of several chunks put together, and the factor of a clip. Included inside a namespace,
// after SAFEOPS_FN; so no include guard. Needs <cmath> and multi_tensor.h.

// sum * 2**by, for by <= 0 or sum == 0.
SAFEOPS_FN double lowered(double sum, int64_t by) {
  return by == 0 ? sum : ::ldexp(sum, int(by > -5000 ? by : -5000));
}

// The sums in units of the larger exponent.
SAFEOPS_FN Reading together(const Reading& a, const Reading& b, int power) {
  Reading all;
  const bool first = b.sum == 0 || (a.sum != 0 && a.exponent > b.exponent);
  all.exponent = first ? a.exponent : b.exponent;
  all.sum = lowered(a.sum, power * (a.exponent - all.exponent)) +
            lowered(b.sum, power * (b.exponent - all.exponent));
  all.largest = a.largest > b.largest ? a.largest : b.largest;
  all.nan = a.nan + b.nan;
  all.posinf = a.posinf + b.posinf;
  all.neginf = a.neginf + b.neginf;
  all.zeros = a.zeros + b.zeros;
  all.subnormal = a.subnormal + b.subnormal;
  return all;
}

SAFEOPS_FN Statistics statistics_of(const Reading& all, int64_t numel, int power) {
  int exponent;
  const double norm = ::frexp(power == 2 ? ::sqrt(all.sum) : all.sum, &exponent);
  const int64_t above = norm == 0 ? 0 : all.exponent + exponent;
  return {norm,       above,     all.largest,   all.nan, all.posinf,
          all.neginf, all.zeros, all.subnormal, numel};
}

// Of value * 2**shift.
SAFEOPS_FN Factor factor_of(double value, int shift) {
  return {::ldexp(value, shift - shift / 2), ::ldexp(1.0, shift / 2)};
}
