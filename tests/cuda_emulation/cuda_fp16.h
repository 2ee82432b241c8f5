// float16 by its bits: to float exactly, from float to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

struct __half { unsigned short bits; };

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }

inline float __half2float(__half h) {
  const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, size = h.bits & 0x7fff;
  const float subnormal = float(size) * 0x1p-24f;
  uint32_t bits = (size << 13) + (size < 0x7c00 ? 112u << 23 : 224u << 23);
  if (size < 0x0400) std::memcpy(&bits, &subnormal, sizeof bits);
  bits |= sign;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// A subnormal result is rounded by the addition of 1/2, whose last bit is that of a subnormal.
inline __half __float2half_rn(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const uint32_t size = bits & 0x7fffffff;
  const unsigned short sign = bits >> 16 & 0x8000;
  if (size > 0x7f800000) return {0x7fff};
  if (size >= 0x477ff000) return {static_cast<unsigned short>(sign | 0x7c00)};
  uint32_t rounded = (size + 0x0fff + (size >> 13 & 1) - (112u << 23)) >> 13;
  if (size < 0x38800000) {
    const float shifted = (f < 0 ? -f : f) + 0.5f;
    std::memcpy(&rounded, &shifted, sizeof rounded);
    rounded -= 0x3f000000;
  }
  return {static_cast<unsigned short>(sign | rounded)};
}
