// Many tensors at once: what one read of them tells, and elementwise writes in place.
#pragma once

#include <cstddef>
#include <vector>

#include "isa.h"

namespace safeops {

// The memory of a tensor without gaps, in whatever order.
struct Span {
  char* data;
  int64_t n;
  Dtype dtype;
};

// The sum of the powers of the finite elements' magnitudes is sum * 2**(power * exponent).
struct Reading {
  double sum = 0;
  int64_t exponent = 0;
  double largest = 0;  // finite magnitude
  int64_t nan = 0, posinf = 0, neginf = 0, zeros = 0;
};

// The same of a whole tensor, or of all: the norm is norm * 2**exponent with norm 0 or in [0.5, 1).
struct Statistics {
  double norm = 0;
  int64_t exponent = 0;
  double largest = 0;
  int64_t nan = 0, posinf = 0, neginf = 0, zeros = 0, numel = 0;
};

// One after the other, since their product may be subnormal where it is narrowed.
struct Factor { double value, rest; };
struct Bounds { double min, max, nan; };

// The loops over one chunk, at one level.
struct ChunkLoops {
  void (*read[2][2][kDtypes])(const char* data, int64_t n, Reading* result);  // detailed, power - 1
  void (*scale[kDtypes])(char* data, int64_t n, const Factor& factor);
  void (*clip[kDtypes])(char* data, int64_t n, const Bounds& bounds);
};

// What was read of each chunk, the chunks of a span one after the other. Only `detailed` readings
// have `zeros`, and `largest` of every chunk.
std::vector<Reading> read(const std::vector<Span>& spans, int power, bool detailed);

// Of each span, and of all together; in the order of the spans, so for any number of threads alike.
std::vector<Statistics> each_of(const std::vector<Span>& spans, const std::vector<Reading>& chunks,
                                int power);
Statistics all_of(const std::vector<Span>& spans, const std::vector<Reading>& chunks, int power);

// Multiplies by value * 2**shift, and puts 0 in place of what is not finite.
void scale(const std::vector<Span>& spans, double value, int shift);
void clip(const std::vector<Span>& spans, const Bounds& bounds);

}  // namespace safeops
