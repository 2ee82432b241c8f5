// dim3, and the vectors that one load or store instruction moves. A misaligned access is an error
// on a GPU: sources are compiled with -fsanitize=alignment, whose handler is here.
#pragma once

#include <cstdint>
#include <string>

#include "errors.h"

struct uint3 { unsigned x, y, z; };

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace cuda_emulation {

// What the compiler says about a check that failed.
struct Misaligned {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment, access;
};

inline void fail_misaligned(const Misaligned& check, uintptr_t address) {
  const uintptr_t alignment = uintptr_t(1) << check.log_alignment;
  fail("a misaligned access at " + Place{check.file, int(check.line)}.text() + ": the address is " +
       std::to_string(address % alignment) + " past a multiple of " + std::to_string(alignment));
}

}  // namespace cuda_emulation

extern "C" __attribute__((used)) inline void __ubsan_handle_type_mismatch_v1(void* check,
                                                                             void* address) {
  cuda_emulation::fail_misaligned(*static_cast<const cuda_emulation::Misaligned*>(check),
                                  reinterpret_cast<uintptr_t>(address));
}
