// What the kernels are written in: single numbers, how each dtype lies in memory, shared memory.
// Plain C++ where <cuda_runtime.h> is that of tests/cuda_emulation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../kinds.h"

#define SAFEOPS_FN __device__ __forceinline__
#define SAFEOPS_TABLE __device__ constexpr
#ifndef SAFEOPS_SHARED
#define SAFEOPS_SHARED(T, name, n) __shared__ T name[n]
#endif

namespace safeops {
namespace {

#include "../scalar/single.h"
#include "../scalar/bits.h"

// How each dtype lies in memory: a word there is `widen`ed to the compute type F and `narrow`ed
// from it. The largest finite number is what saturation needs.
template <Dtype> struct memory;
template <> struct memory<kDouble> {
  using F = double;
  using Word = double;
  static constexpr double max = 0x1.fffffffffffffp+1023, smallest_normal = 0x1p-1022;
  static SAFEOPS_FN F widen(Word w) { return w; }
  static SAFEOPS_FN Word narrow(F v) { return v; }
};
template <> struct memory<kFloat> {
  using F = float;
  using Word = float;
  static constexpr double max = 0x1.fffffep+127, smallest_normal = 0x1p-126;
  static SAFEOPS_FN F widen(Word w) { return w; }
  static SAFEOPS_FN Word narrow(F v) { return v; }
};
template <> struct memory<kHalf> {
  using F = float;
  using Word = uint16_t;
  static constexpr double max = 65504, smallest_normal = 0x1p-14;
  static SAFEOPS_FN F widen(Word w) { return __half2float(__ushort_as_half(w)); }
  static SAFEOPS_FN Word narrow(F v) { return __half_as_ushort(__float2half_rn(v)); }
};
template <> struct memory<kBFloat16> {
  using F = float;
  using Word = uint16_t;
  static constexpr double max = 0x1.fep+127, smallest_normal = 0x1p-126;
  static SAFEOPS_FN F widen(Word w) { return __bfloat162float(__ushort_as_bfloat16(w)); }
  static SAFEOPS_FN Word narrow(F v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }
};

constexpr int kVectorBytes = 16;
template <class M> constexpr int kVector = kVectorBytes / int(sizeof(typename M::Word));

// n words that are read or written at once: a single one, or as many as a vector takes.
template <class M, int n> struct Pack { typename M::Word word[n]; };

template <class M, int n> SAFEOPS_FN void load(const typename M::Word* p, typename M::F* v) {
  if constexpr (n == 1) {
    *v = M::widen(*p);
  } else {
    static_assert(sizeof(Pack<M, n>) == kVectorBytes);
    const uint4 raw = *reinterpret_cast<const uint4*>(p);
    const auto pack = bitcast<Pack<M, n>>(raw);
    for (int i = 0; i < n; ++i) v[i] = M::widen(pack.word[i]);
  }
}

template <class M, int n> SAFEOPS_FN void store(typename M::Word* p, const typename M::F* v) {
  if constexpr (n == 1) {
    *p = M::narrow(*v);
  } else {
    Pack<M, n> pack;
    for (int i = 0; i < n; ++i) pack.word[i] = M::narrow(v[i]);
    *reinterpret_cast<uint4*>(p) = bitcast<uint4>(pack);
  }
}

// A single element of any dtype.
template <class F> SAFEOPS_FN F element(const void* p, Dtype dtype) {
  if (dtype == kDouble) return F(*static_cast<const double*>(p));
  if (dtype == kFloat) return F(*static_cast<const float*>(p));
  const uint16_t word = *static_cast<const uint16_t*>(p);
  return F(dtype == kHalf ? memory<kHalf>::widen(word) : memory<kBFloat16>::widen(word));
}

}  // namespace
}  // namespace safeops
