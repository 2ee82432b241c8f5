// From the flat index of a result to where each operand's element lies.
#pragma once

#include "../broadcast.h"
#include "device.cuh"

namespace safeops {

// n / size for n < 2**31, by a multiplication and a shift (Granlund and Montgomery, 1994).
struct Divider {
  uint32_t size = 1, factor = 1, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t by) : size(by) {
    while (shift < 31 && (uint32_t(1) << shift) < by) ++shift;
    factor = uint32_t(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - by)) / by + 1);
  }
};

namespace {
SAFEOPS_FN uint32_t quotient(uint32_t n, const Divider& by) {
  return (__umulhi(n, by.factor) + n) >> by.shift;
}
}  // namespace

constexpr int kWalked = 25;  // dimensions that cannot be joined; torch's own limit on a GPU

// The walked dimensions of some operands, innermost first; strides in elements.
template <int operands> struct Places {
  int dims = 0;
  Divider size[kWalked];
  int64_t stride[operands][kWalked];

  // The outermost dimension, which is the last one, is never divided by.
  void add(int64_t by, bool outermost) {
    size[dims++] = outermost ? Divider() : Divider(uint32_t(by));
  }

  SAFEOPS_FN void find(uint32_t i, int64_t (&at)[operands]) const {
    for (int k = 0; k < operands; ++k) at[k] = 0;
    for (int d = 0; d < dims; ++d) {
      const uint32_t next = d + 1 < dims ? quotient(i, size[d]) : 0;
      const uint32_t here = i - next * size[d].size;
      for (int k = 0; k < operands; ++k) at[k] += here * stride[k][d];
      i = next;
    }
  }
};

inline void check_walked(int dims) {
  if (dims > kWalked) {
    throw std::runtime_error("safeops: on a GPU at most " + std::to_string(kWalked) +
                             " dimensions that cannot be joined, got " + std::to_string(dims) +
                             ": call contiguous() first");
  }
}

}  // namespace safeops
