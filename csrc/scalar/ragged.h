// Rows that hold infinities, NaN or nothing at all, and gradients whose sums overflow: rare, so in
// double, and read as often as it takes. Needs exp.h and log.h with F = double. Threads that share
// a line count and sum together: whether they do must not depend on what they have read. A Line has
//
// at(k, i)             element i of operand k
// count(is), sum(of)   of the elements that take part; is(i), of(i)
// each(value, hidden)  makes element i of the result value(i), and `hidden` what is masked
// only(value)          the result, if it is one number
// max()                the largest finite number

// k infinities share the mass; a NaN makes every element one; without either there is no mass.
template <RowOp op, class Line> SAFEOPS_FN void ragged_forward(const Line& line) {
  constexpr double none = op == kSoftmax ? 0 : -kInfinity;
  const bool nan = line.count([&](int64_t i) { return !(line.at(0, i) == line.at(0, i)); }) > 0;
  const double infinities = line.count([&](int64_t i) { return line.at(0, i) == kInfinity; });
  if (op == kLogSumExp) return line.only(nan ? kNan : infinities > 0 ? kInfinity : -kInfinity);
  const double share = infinities == 0  ? 0
                       : op == kSoftmax ? 1 / infinities
                                        : -log_of_positive(infinities);
  line.each([&](int64_t i) { return nan                          ? kNan
                                    : line.at(0, i) == kInfinity ? share
                                                                 : none; },
            none);
}

// No upstream gradient or an empty line: 0. The infinities of a line share its gradient. What is
// infinite or NaN upstream is passed on.
template <class Line> SAFEOPS_FN void ragged_logsumexp(const Line& line, double grad,
                                                       double result) {
  const auto share = [&](int64_t i) {
    return result == kInfinity ? double(line.at(0, i) == kInfinity)
                               : exp_of<0>(line.at(0, i) - result);
  };
  const double total = line.sum(share);
  const bool zero = grad == 0 || result == -kInfinity;
  line.each([&](int64_t i) { return zero ? 0 : grad * (share(i) / total); }, 0);
}

// y (grad - sum(grad y)) or grad - exp(y) sum(grad), scaled down so far that no sum overflows; 0
// where there is no upstream gradient or no mass. What is infinite or NaN upstream is passed on.
template <RowOp op, class Line> SAFEOPS_FN void ragged_gradients(const Line& line, double sum) {
  constexpr bool soft = op == kSoftmax;
  constexpr double none = soft ? 0 : -kInfinity;
  const double gradients = line.count([&](int64_t i) { return line.at(0, i) != 0; });
  const double masses = line.count([&](int64_t i) { return line.at(1, i) != none; });
  const bool zero = gradients == 0 || masses == 0;
  const bool natural = line.count([&](int64_t i) { return !finite(line.at(0, i)); }) > 0;
  const double scale = natural || magnitude(sum) <= 1 ? 1 : 0x1p-64;
  const double limit = natural ? kInfinity : line.max() * scale;
  const double total =
      line.sum([&](int64_t i) { return line.at(0, i) * scale * (soft ? line.at(1, i) : 1); });
  line.each(
      [&](int64_t i) {
        const double g = line.at(0, i), y = line.at(1, i), p = soft ? y : exp_of<0>(y);
        if (zero) return 0.0;
        if (soft) return p * (g * scale - total) / scale;
        return p == 0 && !natural ? g : held(g * scale - p * total, limit) / scale;
      },
      0);
}

// What is known of the line: the upstream gradient and the result of logsumexp, of the others the
// sum that counts.
template <RowOp op, bool backward, class Line>
SAFEOPS_FN void mend_line(const Line& line, double grad_or_sum, double result) {
  if constexpr (!backward) return ragged_forward<op>(line);
  if constexpr (backward && op == kLogSumExp) return ragged_logsumexp(line, grad_or_sum, result);
  if constexpr (backward && op != kLogSumExp) return ragged_gradients<op>(line, grad_or_sum);
}
