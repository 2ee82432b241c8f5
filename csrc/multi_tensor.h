// Many tensors at once: what one read of them tells, and elementwise writes in place. Each is cut
// into chunks.
#pragma once

#include <cstddef>
#include <vector>

#include "kinds.h"

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
  int64_t nan = 0, posinf = 0, neginf = 0, zeros = 0, subnormal = 0;
};

// How much a read must tell. kNorm counts nothing but what is not finite, and `largest` is known
// only of chunks that were read again; kExtremes need not count subnormals.
enum Columns { kNorm, kExtremes, kEvery, kColumns };

// The same of a whole tensor, or of all: the norm is norm * 2**exponent with norm 0 or in [0.5, 1).
struct Statistics {
  double norm = 0;
  int64_t exponent = 0;
  double largest = 0;
  int64_t nan = 0, posinf = 0, neginf = 0, zeros = 0, subnormal = 0, numel = 0;
};

// Whether a Reading or Statistics has seen an element that is not finite.
template <class Seen> constexpr bool is_bad(const Seen& seen) {
  return seen.nan + seen.posinf + seen.neginf != 0;
}

// One after the other, since their product may be subnormal where it is narrowed.
struct Factor { double value, rest; };
Factor factor_from(double value, int shift);  // value * 2**shift
struct Bounds { double min, max, nan; };

constexpr int64_t kChunkBytes = 1 << 16;
constexpr int64_t chunk_size(Dtype dtype) { return kChunkBytes / kElementSize[dtype]; }

// The chunks of a span; none of one without elements.
constexpr int64_t chunks_of(const Span& span) {
  return (span.n + chunk_size(span.dtype) - 1) / chunk_size(span.dtype);
}
int64_t chunks_of(const std::vector<Span>& spans);

// Of each span, and of all together; in the order of the spans, so for any number of threads alike.
std::vector<Statistics> each_of(const std::vector<Span>& spans, const std::vector<Reading>& chunks,
                                int power);
Statistics all_of(const std::vector<Span>& spans, const std::vector<Reading>& chunks, int power);

namespace cpu {

// What was read of each chunk, the chunks of a span one after the other.
std::vector<Reading> read(const std::vector<Span>& spans, int power, Columns columns);

// Multiplies, and puts 0 in place of what is not finite.
void scale(const std::vector<Span>& spans, const Factor& factor);
void clip(const std::vector<Span>& spans, const Bounds& bounds);

}  // namespace cpu

// A clip of all together: to what norm, and whether what is not finite is dropped.
struct Goal {
  double max_norm;
  bool drops;
};

// What is done about it, and whether that writes at all.
struct Decision {
  Statistics all;
  Factor factor;
  int64_t writes;
};

// The same on a GPU: queued on its current stream, and nothing here waits. Readings, decisions and
// the norm, which is a float64 if `wide` and else a float32, lie there too.
namespace cuda {

void read(int device, const std::vector<Span>& spans, int power, Columns columns, Reading* chunks);
void decide(int device, const std::vector<Span>& spans, const Reading* chunks, int power,
            const Goal& goal, Decision* decision, void* norm, bool wide);
void scale(int device, const std::vector<Span>& spans, const Factor& factor);
void scale_if(int device, const std::vector<Span>& spans, const Decision* decision);
void clip(int device, const std::vector<Span>& spans, const Bounds& bounds);

}  // namespace cuda
}  // namespace safeops
