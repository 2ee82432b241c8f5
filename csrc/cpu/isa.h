// CPU levels: one source, compiled once per instruction set by target regions, no build flags.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "../kinds.h"

#if defined(__x86_64__) && !defined(SAFEOPS_PORTABLE)
#define SAFEOPS_X86 1
#include <immintrin.h>
#else
#define SAFEOPS_X86 0
#endif

#define SAFEOPS_FN inline __attribute__((always_inline))
#define SAFEOPS_TABLE constexpr
#define SAFEOPS_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define SAFEOPS_TARGET(features) \
  SAFEOPS_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SAFEOPS_TARGET_END SAFEOPS_PRAGMA(clang attribute pop)
#else
#define SAFEOPS_TARGET(features) \
  SAFEOPS_PRAGMA(GCC push_options) SAFEOPS_PRAGMA(GCC target(features))
#define SAFEOPS_TARGET_END SAFEOPS_PRAGMA(GCC pop_options)
#endif

// The levels in the order of levels.inc.
#if SAFEOPS_X86
#define SAFEOPS_EACH_LEVEL(use) use(avx512), use(avx2)
#else
#define SAFEOPS_EACH_LEVEL(use) use(native)
#endif
#define SAFEOPS_NAME_OF(level) #level
#define SAFEOPS_TABLE_OF(level) level::table

namespace safeops {

// n elements: inputs and outputs lie one after the other, or an input is one value for all.
struct Run {
  const void* in[kMaxInputs];
  double value[kMaxInputs];
  bool scalar[kMaxInputs];
  void* out[kMaxOutputs];
  int64_t n;
  const double* constants;
};

using Body = void (*)(const Run&);

// The loops of one op at one level; gradient by the set of inputs whose gradient is wanted.
struct Loops {
  Body value[kDtypes];
  Body gradient[4][kDtypes];
};

}  // namespace safeops
