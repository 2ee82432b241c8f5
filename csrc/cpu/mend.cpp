#include "mend.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <limits>

namespace safeops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T> struct Line {
  const Ragged& l;

  bool taken(int64_t i) const { return !l.mask || l.mask[i * l.mask_step]; }
  double at(int k, int64_t i) const {
    return double(*reinterpret_cast<const T*>(l.in[k] + i * l.in_step[k]));
  }
  void put(int64_t i, double value) const {
    *reinterpret_cast<T*>(l.out + i * l.out_step) =
        T(std::is_same_v<T, double> ? value : float(value));
  }
  template <class F> void each(F&& value, double hidden) const {
    for (int64_t i = 0; i < l.n; ++i) put(i, taken(i) ? value(i) : hidden);
  }
  template <class F> int64_t count(F&& is) const {
    int64_t found = 0;
    for (int64_t i = 0; i < l.n; ++i) found += taken(i) && is(i);
    return found;
  }
  static double max() { return double(std::numeric_limits<T>::max()); }
};

// k infinities share the mass; a NaN makes every element one; without either there is no mass.
template <class T> void forward(const Line<T>& line) {
  const RowOp op = line.l.op;
  const bool nan = line.count([&](int64_t i) { return std::isnan(line.at(0, i)); }) > 0;
  const double infinities = line.count([&](int64_t i) { return line.at(0, i) == kInfinity; });
  if (op == kLogSumExp) return line.put(0, nan ? kNan : infinities > 0 ? kInfinity : -kInfinity);
  const double none = op == kSoftmax ? 0 : -kInfinity;
  const double share = op == kSoftmax ? 1 / infinities : -std::log(infinities);
  line.each([&](int64_t i) { return nan                          ? kNan
                                    : line.at(0, i) == kInfinity ? share
                                                                 : none; },
            none);
}

// No upstream gradient or an empty line: 0. The infinities of a line share its gradient. What is
// infinite or NaN upstream is passed on.
template <class T> void logsumexp(const Line<T>& line, double grad, double result) {
  const auto share = [&](int64_t i) {
    return result == kInfinity ? double(line.at(0, i) == kInfinity)
                               : std::exp(line.at(0, i) - result);
  };
  double total = 0;
  for (int64_t i = 0; i < line.l.n; ++i) total += line.taken(i) ? share(i) : 0;
  const bool zero = grad == 0 || result == -kInfinity;
  line.each([&](int64_t i) { return zero ? 0 : grad * (share(i) / total); }, 0);
}

// y (grad - sum(grad y)) or grad - exp(y) sum(grad), scaled down so far that no sum overflows; 0
// where there is no upstream gradient or no mass. What is infinite or NaN upstream is passed on.
template <class T> void gradients(const Line<T>& line, double sum) {
  const bool soft = line.l.op == kSoftmax;
  const double none = soft ? 0 : -kInfinity;
  const bool zero = line.count([&](int64_t i) { return line.at(0, i) != 0; }) == 0 ||
                    line.count([&](int64_t i) { return line.at(1, i) != none; }) == 0;
  const bool natural = line.count([&](int64_t i) { return !std::isfinite(line.at(0, i)); }) > 0;
  const double scale = natural || std::fabs(sum) <= 1 ? 1 : 0x1p-64;
  const double limit = natural ? kInfinity : line.max() * scale;
  double total = 0;
  for (int64_t i = 0; i < line.l.n; ++i) {
    if (line.taken(i)) total += line.at(0, i) * scale * (soft ? line.at(1, i) : 1);
  }
  line.each(
      [&](int64_t i) {
        const double g = line.at(0, i), y = line.at(1, i), p = soft ? y : std::exp(y);
        if (zero) return 0.0;
        if (soft) return p * (g * scale - total) / scale;
        return p == 0 && !natural ? g : held(g * scale - p * total, limit) / scale;
      },
      0);
}

template <class T> void mend_as(const Ragged& l, const Slot& slot) {
  const Line<T> line{l};
  if (!l.backward) return forward(line);
  if (l.op == kLogSumExp) return logsumexp(line, slot.weight, slot.top);
  gradients(line, slot.total);
}

}  // namespace

void mend(const Ragged& line, const Slot& slot) {
  switch (line.dtype) {
    case kDouble:
      return mend_as<double>(line, slot);
    case kFloat:
      return mend_as<float>(line, slot);
    case kHalf:
      return mend_as<c10::Half>(line, slot);
    default:
      return mend_as<c10::BFloat16>(line, slot);
  }
}

}  // namespace safeops
