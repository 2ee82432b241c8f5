// log(x), and below + (x - bound) / run where x < bound or x <= 0.

// x = m * 2**k with 3/4 <= m < 3/2, so that log x is near 0 only where k = 0; r = m c[i] - 1 with i
// the top four bits of m's mantissa; log x = k ln 2 + T[i] + r + r**2 Q(r). T[i] = -log c[i] has so
// few bits that k ln2_high + T[i] is exact. log_table.py makes the constants and says how exact
// they are: T within 2**-34 and Q within 2**-27 in float, 2**-66 and 2**-61 in double.
SAFEOPS_TABLE float log_c_float[16] = {1,
                                       0x1.d5f1f6p-1f,
                                       0x1.bd7fbep-1f,
                                       0x1.a1677ep-1f,
                                       0x1.8f8434p-1f,
                                       0x1.7eb69ap-1f,
                                       0x1.6bf76cp-1f,
                                       0x1.5f2c6p-1f,
                                       0x1.4d53b6p+0f,
                                       0x1.3edc1ap+0f,
                                       0x1.35c0cp+0f,
                                       0x1.292e36p+0f,
                                       0x1.1e1064p+0f,
                                       0x1.13ad34p+0f,
                                       0x1.0ac5f4p+0f,
                                       1};
SAFEOPS_TABLE float log_T_float[16] = {0,
                                       0x1.5f1p-4f,
                                       0x1.1cfp-3f,
                                       0x1.a258p-3f,
                                       0x1.fc0cp-3f,
                                       0x1.2a06p-2f,
                                       0x1.5d74p-2f,
                                       0x1.8218p-2f,
                                       -0x1.0e48p-2f,
                                       -0x1.c1bp-3f,
                                       -0x1.8658p-3f,
                                       -0x1.317cp-3f,
                                       -0x1.c6dp-4f,
                                       -0x1.2f5p-4f,
                                       -0x1.51bp-5f,
                                       0};
SAFEOPS_TABLE double log_c_double[16] = {1,
                                         0x1.d41d4153a3827p-1,
                                         0x1.bacf9119bc64dp-1,
                                         0x1.a41a413de536ep-1,
                                         0x1.8f9c18c603e15p-1,
                                         0x1.7d05f44825e36p-1,
                                         0x1.6c16c187cd048p-1,
                                         0x1.5c9882a020bb2p-1,
                                         0x1.4e5e0a99b8b99p+0,
                                         0x1.4141411c5e724p+0,
                                         0x1.3521cf949b6fbp+0,
                                         0x1.29e4127f6894cp+0,
                                         0x1.1f70481aa0407p+0,
                                         0x1.15b1e5a3aada7p+0,
                                         0x1.0c971537a4e0fp+0,
                                         1};
SAFEOPS_TABLE double log_T_double[16] = {0,
                                         0x1.6f0d2d128p-4,
                                         0x1.2955306af8p-3,
                                         0x1.9525abc188p-3,
                                         0x1.fb9187df1p-3,
                                         0x1.2e8e2b2c2cp-2,
                                         0x1.5d1bdba79p-2,
                                         0x1.89a338b5b4p-2,
                                         -0x1.1178e89944p-2,
                                         -0x1.d1037e3b3p-3,
                                         -0x1.823c158dap-3,
                                         -0x1.365fca2d48p-3,
                                         -0x1.da7279b3bp-4,
                                         -0x1.4d3111002p-4,
                                         -0x1.894aa86b2p-5,
                                         0};

template <class S> struct log_table;
template <> struct log_table<float> {
  static SAFEOPS_FN const float* c() { return log_c_float; }
  static SAFEOPS_FN const float* T() { return log_T_float; }
  static constexpr float ln2_high = 0x1.62ep-1f, ln2_low = 0x1.0bfbe8p-15f;
  float Q[4] = {0x1.85facap-3f, -0x1.00241cp-2f, 0x1.55579p-2f, -0x1.fffffep-2f};
};
template <> struct log_table<double> {
  static SAFEOPS_FN const double* c() { return log_c_double; }
  static SAFEOPS_FN const double* T() { return log_T_double; }
  static constexpr double ln2_high = 0x1.62e42fefp-1, ln2_low = 0x1.473de6af278edp-34;
  double Q[10] = {0x1.447cbbafa4886p-4, -0x1.9808b4e863b47p-4,
                  0x1.c72ede3d314c7p-4, -0x1.00008c6171281p-3,
                  0x1.2492488c5629p-3,  -0x1.5555553b09264p-3,
                  0x1.9999999988d8ap-3, -0x1.0000000000ccap-2,
                  0x1.555555555555dp-2, -0x1p-1};
};

template <class F> SAFEOPS_FN F log_of_positive(F x) {
  using S = scalar_of<F>;
  using table = log_table<S>;
  constexpr table series;
  const Normalized<F> n = normalized(x);
  const auto i = shift_right_unsigned(bits(n.mantissa), format<S>::mantissa - 4);
  const F r = fma(n.mantissa, lookup16(table::c(), i), splat<F>(S(-1)));

  F q = splat<F>(series.Q[0]);
  for (int d = 1; d < int(sizeof series.Q / sizeof(S)); ++d) q = fma(q, r, splat<F>(series.Q[d]));

  // The large terms are added with their rounding error kept: they may nearly cancel.
  const F exact = fma(n.exponent, splat<F>(table::ln2_high), lookup16(table::T(), i));
  const F sum = exact + r;
  const F lost = fma(n.exponent, splat<F>(table::ln2_low), r - (sum - exact));
  return sum + fma(r * r, q, lost);
}

template <class F> struct log_value {
  using S = scalar_of<F>;
  S bound, below, run, limit;

  SAFEOPS_FN F operator()(F x) const {
    const F log = x <= format<S>::max ? log_of_positive(x) : x;
    return guarded(x, bound) ? tangent(x, bound, below, run, limit) : log;
  }
};

template <class F> struct log_gradient {
  using S = scalar_of<F>;
  S bound, below, run, limit;

  SAFEOPS_FN F operator()(F grad, F x) const {
    const F outside = tangent_gradient(grad, run);
    const F d = saturate(F(guarded(x, bound) ? outside : grad / x), finite(grad), limit);
    return grad == S(0) ? grad : d;
  }
};
