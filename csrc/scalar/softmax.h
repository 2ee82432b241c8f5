// Rows whose maximum and sum are known: what softmax, log_softmax and their gradients make of each
// element. Needs exp.h.

constexpr double kInfinity = __builtin_inf(), kNan = __builtin_nan("");

SAFEOPS_FN double magnitude_of(double v) { return v < 0 ? -v : v; }

// A finite or infinite v held inside +-max; NaN stays.
SAFEOPS_FN double held(double v, double max) { return v > max ? max : v < -max ? -max : v; }

template <class F> SAFEOPS_FN F within(F v, scalar_of<F> max) {
  return smaller(splat<F>(max), larger(splat<F>(-max), v));
}

// Would an exponential, which may be 2**kUp, overflow under this scale?
SAFEOPS_FN bool is_large(double scale) { return scale > 0x1p+20 || scale < -0x1p+20; }

// What is missing of v in its rounded form, if it can change a result.
template <class S> SAFEOPS_FN S correction(double v, S rounded) {
  const double rest = v - rounded;
  return magnitude_of(rest) > 0x1p-31 * magnitude_of(v) ? S(rest) : S(0);
}

// e * scale for exponentials e that are kept 2**kUp times as large, with the factor in two parts.
// Where memory holds the compute type nothing overflows: e is at most 2**kUp, and a large factor is
// brought down, not the result.
template <class S> struct Share {
  bool large;
  S high, low;

  explicit SAFEOPS_FN Share(double scale) : large(is_large(scale)) {
    const double by = scale * (large ? kDown : 1);
    high = S(by);
    low = correction(by, high);
  }

  template <class F> SAFEOPS_FN F of(F e) const {
    const F product = fma(e, splat<F>(high), e * low);
    return large ? product : brought_down(product);
  }
};

// x - top - log_total, which saturates.
template <class F> SAFEOPS_FN F logarithm(F x, F top, F log_total, scalar_of<F> max) {
  return x == scalar_of<F>(-kInfinity) ? x : larger(splat<F>(-max), F(x - top - log_total));
}

// y (grad - total), halved and doubled on the way so that the difference cannot overflow.
template <class F> SAFEOPS_FN F softmax_gradient(F grad, F y, F half_total) {
  return (y + y) * fma(grad, splat<F>(scalar_of<F>(0.5)), -half_total);
}

// grad - exp(y) total, which saturates; where grad is not finite neither is the total, and the line
// is mended. The total comes brought down, which must not make it subnormal.
constexpr int kGradientUp = 64;
constexpr double kGradientDown = 0x1p-64;
template <class F> SAFEOPS_FN F log_softmax_gradient(F grad, F y, F total, scalar_of<F> max) {
  return within(fma(exp_of<kGradientUp>(y), F(-total), grad), max);
}

// Whether the formulas above hold for a line: no infinities, NaN or emptiness in it, no sum that
// overflows. S is the compute type, max the largest number of what memory holds.
template <RowOp op, bool backward, class S>
SAFEOPS_FN bool is_ordinary(const Slot& slot, double max) {
  const double total = magnitude_of(slot.total), weight = magnitude_of(slot.weight);
  constexpr double least = format<S>::smallest_normal / kGradientDown, most = format<S>::max / 4;
  if constexpr (!backward) {
    return slot.top > -kInfinity && slot.top < kInfinity && slot.total == slot.total;
  }
  if constexpr (op == kSoftmax) return total <= max;
  if constexpr (op == kLogSoftmax) {
    return slot.top > -kInfinity && total <= most && (total >= least || total == 0);
  }
  // The result is known, but rounded, so the sum is not 1.
  return weight > 0 && weight <= max && weight <= format<S>::max * slot.total && slot.top >= -max &&
         slot.top <= max;
}
