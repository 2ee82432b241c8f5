// The half types: every number, and rounding between each two neighbours.
#pragma once

#include <algorithm>
#include <cmath>

#include "selftest.cuh"

namespace {

void test_half(unsigned short bits, float value) {
  EXPECT(__half2float(__ushort_as_half(bits)) == value);
  EXPECT(__half_as_ushort(__float2half_rn(value)) == bits);
}

template <class Narrow>
void test_between(const Narrow& narrow, unsigned short bits, float low, float high) {
  const float middle = low + (high - low) / 2;
  EXPECT(narrow(middle) == bits + bits % 2 && narrow(-middle) == 0x8000 + bits + bits % 2);
  EXPECT(narrow(std::nextafter(middle, low)) == bits);
  EXPECT(narrow(std::nextafter(middle, high)) == bits + 1);
}

float half_value(int bits) {  // of a finite one; the next one after the largest is 65536
  const int exponent = std::max(bits >> 10, 1);
  return std::ldexp(float((bits & 0x3ff) + (bits >> 10 ? 0x400 : 0)), exponent - 25);
}

float bfloat16_value(int bits) {
  const int exponent = std::max(bits >> 7, 1);
  return std::ldexp(float((bits & 0x7f) + (bits >> 7 ? 0x80 : 0)), exponent - 134);
}

void test_halves() {
  const auto half = [](float f) { return __half_as_ushort(__float2half_rn(f)); };
  const auto bfloat16 = [](float f) { return __bfloat16_as_ushort(__float2bfloat16_rn(f)); };
  for (int bits = 0; bits < 0x7c00; ++bits) {
    test_half(bits, half_value(bits)), test_half(bits | 0x8000, -half_value(bits));
    test_between(half, bits, half_value(bits), half_value(bits + 1));
  }
  for (int bits = 0; bits < 0x7f80; ++bits) {
    EXPECT(__bfloat162float(__ushort_as_bfloat16(bits)) == bfloat16_value(bits));
    EXPECT(bfloat16(bfloat16_value(bits)) == bits);
    if (bits < 0x7f7f) test_between(bfloat16, bits, bfloat16_value(bits), bfloat16_value(bits + 1));
  }
  test_half(0x7c00, INFINITY), test_half(0xfc00, -INFINITY);
  EXPECT(half(1e30f) == 0x7c00 && bfloat16(0x1.ffp127f) == 0x7f80 && bfloat16(-INFINITY) == 0xff80);
  for (float nan : {NAN, -NAN}) EXPECT(half(nan) == 0x7fff && bfloat16(nan) == 0x7fff);
  for (int bits = 0x7c01; bits < 0x8000; ++bits) {
    EXPECT(std::isnan(__half2float(__ushort_as_half(bits))));
  }
}

}  // namespace
