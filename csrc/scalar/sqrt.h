// sqrt(x), and below + (x - bound) / run where x < bound or x <= 0.

template <class F> struct sqrt_value {
  using S = scalar_of<F>;
  S bound, below, run, limit;

  SAFEOPS_FN F operator()(F x) const {
    return guarded(x, bound) ? tangent(x, bound, below, run, limit) : root(x);
  }
};

// In the default form the result tells which elements were guarded, and only it is kept;
// with a bound or a fill the input is.
template <class F> struct sqrt_gradient {
  using S = scalar_of<F>;
  S bound, below, run, limit;

  SAFEOPS_FN F operator()(F grad, F saved) const {
    const bool result = bound == S(0) && below == S(0);
    const F r = result ? saved : root(saved);
    const F outside = tangent_gradient(grad, run);
    const F d = saturate(F(guarded(saved, bound) ? outside : grad / (r + r)), finite(grad), limit);
    return grad == S(0) ? grad : d;
  }
};
