#include "mend.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <limits>

namespace safeops {
namespace {

#include "../scalar/single.h"
#include "../scalar/bits.h"
#include "../scalar/exp.h"
#include "../scalar/log.h"
#include "../scalar/softmax.h"
#include "../scalar/ragged.h"

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
  void only(double value) const { put(0, value); }
  template <class F> void each(F&& value, double hidden) const {
    for (int64_t i = 0; i < l.n; ++i) put(i, taken(i) ? value(i) : hidden);
  }
  template <class F> int64_t count(F&& is) const {
    int64_t found = 0;
    for (int64_t i = 0; i < l.n; ++i) found += taken(i) && is(i);
    return found;
  }
  template <class F> double sum(F&& of) const {
    double total = 0;
    for (int64_t i = 0; i < l.n; ++i) total += taken(i) ? of(i) : 0;
    return total;
  }
  static double max() { return double(std::numeric_limits<T>::max()); }
};

template <class T, RowOp op> void mend_op(const Ragged& l, const Slot& slot) {
  const double known = op == kLogSumExp ? slot.weight : slot.total;
  const Line<T> line{l};
  l.backward ? mend_line<op, true>(line, known, slot.top)
             : mend_line<op, false>(line, known, slot.top);
}

template <class T> void mend_as(const Ragged& l, const Slot& slot) {
  if (l.op == kSoftmax) return mend_op<T, kSoftmax>(l, slot);
  if (l.op == kLogSoftmax) return mend_op<T, kLogSoftmax>(l, slot);
  mend_op<T, kLogSumExp>(l, slot);
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
