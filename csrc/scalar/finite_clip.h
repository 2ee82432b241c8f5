// min(max(x, min), max), and nan where x is NaN.

template <class F> struct finite_clip_value {
  using S = scalar_of<F>;
  S min, max, nan, limit;

  SAFEOPS_FN F operator()(F x) const {
    const F raised = x < min ? splat<F>(min) : x;
    const F clipped = raised > max ? splat<F>(max) : raised;
    return x == x ? clipped : splat<F>(nan);
  }
};

template <class F> struct finite_clip_gradient {
  using S = scalar_of<F>;
  S min, max, nan, limit;

  SAFEOPS_FN F operator()(F grad, F x) const { return ((x >= min) & (x <= max)) ? grad : F{}; }
};
