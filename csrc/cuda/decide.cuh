// The decision of a clip, from what was read of all chunks, on the GPU that has read them.
#pragma once

#include "multi_tensor.cuh"

namespace safeops {

constexpr int kDecideThreads = 512;

namespace {

// What brings the norm down to the limit, if it is beyond.
SAFEOPS_FN bool clips(const Statistics& all, double max_norm, Factor* factor) {
  *factor = {1, 1};
  if (all.norm == 0 || ::ldexp(all.norm, int(all.exponent)) <= max_norm) return false;
  int shift, more;
  const double limit = ::frexp(max_norm, &shift);
  const double value = ::frexp(limit / all.norm, &more);
  *factor = factor_of(value, shift - int(all.exponent) + more);
  return true;
}

// Of all elements, or of the finite ones; a finite norm ends at the range of its dtype.
SAFEOPS_FN double norm_of(const Statistics& all, bool of_finite, double most) {
  if (is_bad(all) && !of_finite) {
    return all.nan ? bitcast<double>(int64_t(0x7ff8) << 48) : double(INFINITY);
  }
  return smaller(::ldexp(all.norm, int(all.exponent)), most);
}

__global__ void __launch_bounds__(kDecideThreads)
    decide_clip(const Reading* __restrict__ chunks, int64_t count, int64_t numel, int power,
                const Goal goal, Decision* decision, void* norm, bool wide) {
  Reading own;
  for (int64_t i = threadIdx.x; i < count; i += kDecideThreads) {
    own = together(own, chunks[i], power);
  }
  const auto join = [power](const Reading& a, const Reading& b) { return together(a, b, power); };
  const Reading all = over_block<kDecideThreads>(own, join);
  if (threadIdx.x != 0) return;
  decision->all = statistics_of(all, numel, power);
  const bool clipped = clips(decision->all, goal.max_norm, &decision->factor);
  decision->writes = is_bad(decision->all) ? goal.drops : clipped;
  const double value =
      norm_of(decision->all, goal.drops, wide ? memory<kDouble>::max : memory<kFloat>::max);
  if (norm != nullptr && wide) *static_cast<double*>(norm) = value;
  if (norm != nullptr && !wide) *static_cast<float*>(norm) = float(value);
}

}  // namespace
}  // namespace safeops
