// Many tensors at once: cut into chunks, which the threads share; joined in their order.

#include "multi_tensor.h"

#include <algorithm>
#include <cmath>

#include "../levels.h"
#include "../results.h"

#define SAFEOPS_BODY "multi_tensor.inc"
#include "levels.inc"

namespace safeops {
namespace {

constexpr int64_t kChunkBytes = 1 << 16;

#define SAFEOPS_CHUNK_LOOPS(level) &level::table
const ChunkLoops* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_CHUNK_LOOPS)};

const ChunkLoops& loops() { return *kTables[current_level.load(std::memory_order_relaxed)]; }

int64_t chunk_size(Dtype dtype) { return kChunkBytes / kElementSize[dtype]; }

// The chunks of a span; none of one without elements.
int64_t chunks_of(const Span& span) {
  return (span.n + chunk_size(span.dtype) - 1) / chunk_size(span.dtype);
}

std::vector<Span> cut(const std::vector<Span>& spans) {
  std::vector<Span> chunks;
  chunks.reserve(spans.size());
  for (const Span& span : spans) {
    const int64_t size = chunk_size(span.dtype);
    for (int64_t i = 0; i < span.n; i += size) {
      chunks.push_back(
          {span.data + i * kElementSize[span.dtype], std::min(size, span.n - i), span.dtype});
    }
  }
  return chunks;
}

// visit(begin, end) over all chunks.
template <class Visit> void visit_all(const std::vector<Span>& chunks, const Visit& visit) {
  int64_t bytes = 0;
  for (const Span& chunk : chunks) bytes += chunk.n * kElementSize[chunk.dtype];
  const int64_t count = chunks.size();
  spread(count, bytes / std::max<int64_t>(1, count), visit);
}

// The sum of the powers, as sum * 2**(power * exponent) with the largest exponent there is.
struct Sum {
  double value = 0;
  int64_t exponent = 0;
};

Sum sum_of(const Reading* chunks, int64_t count, int power) {
  const Reading* const end = chunks + count;
  bool any = false;
  Sum sum;
  for (const Reading* c = chunks; c < end; ++c) {
    if (c->sum == 0) continue;
    sum.exponent = any ? std::max(sum.exponent, c->exponent) : c->exponent;
    any = true;
  }
  for (const Reading* c = chunks; c < end; ++c) {
    const int64_t shift = power * (c->exponent - sum.exponent);
    sum.value += shift == 0 ? c->sum : std::ldexp(c->sum, std::max<int64_t>(shift, -5000));
  }
  return sum;
}

Statistics joined(const Reading* chunks, int64_t count, int64_t numel, int power) {
  const Sum sum = sum_of(chunks, count, power);
  int exponent;
  Statistics s;
  s.norm = std::frexp(power == 2 ? std::sqrt(sum.value) : sum.value, &exponent);
  s.exponent = s.norm == 0 ? 0 : sum.exponent + exponent;
  s.numel = numel;
  for (const Reading* c = chunks; c < chunks + count; ++c) {
    s.largest = std::max(s.largest, c->largest);
    s.nan += c->nan;
    s.posinf += c->posinf;
    s.neginf += c->neginf;
    s.zeros += c->zeros;
  }
  return s;
}

}  // namespace

std::vector<Reading> read(const std::vector<Span>& spans, int power, bool detailed) {
  const auto& read_chunk = loops().read[detailed][power - 1];
  if (spans.size() == 1 && chunks_of(spans[0]) == 1) {  // a check of one small tensor is all calls
    std::vector<Reading> readings(1);
    read_chunk[spans[0].dtype](spans[0].data, spans[0].n, readings.data());
    return readings;
  }
  const std::vector<Span> chunks = cut(spans);
  std::vector<Reading> readings(chunks.size());
  visit_all(chunks, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      read_chunk[chunks[k].dtype](chunks[k].data, chunks[k].n, &readings[k]);
    }
  });
  return readings;
}

std::vector<Statistics> each_of(const std::vector<Span>& spans, const std::vector<Reading>& chunks,
                                int power) {
  std::vector<Statistics> result;
  result.reserve(spans.size());
  const Reading* next = chunks.data();
  for (const Span& span : spans) {
    result.push_back(joined(next, chunks_of(span), span.n, power));
    next += chunks_of(span);
  }
  return result;
}

Statistics all_of(const std::vector<Span>& spans, const std::vector<Reading>& chunks, int power) {
  int64_t numel = 0;
  for (const Span& span : spans) numel += span.n;
  return joined(chunks.data(), chunks.size(), numel, power);
}

// Each thread from its last chunk to its first: a read before this left the last ones in the cache.
template <class Write> static void write_all(const std::vector<Span>& spans, const Write& write) {
  const std::vector<Span> chunks = cut(spans);
  visit_all(chunks, [&](int64_t begin, int64_t end) {
    for (int64_t k = end; k-- > begin;) write(chunks[k]);
  });
}

void scale(const std::vector<Span>& spans, double value, int shift) {
  const Factor factor{std::ldexp(value, shift - shift / 2), std::ldexp(1.0, shift / 2)};
  const auto& scale_chunk = loops().scale;
  write_all(spans, [&](const Span& c) { scale_chunk[c.dtype](c.data, c.n, factor); });
}

void clip(const std::vector<Span>& spans, const Bounds& bounds) {
  const auto& clip_chunk = loops().clip;
  write_all(spans, [&](const Span& c) { clip_chunk[c.dtype](c.data, c.n, bounds); });
}

}  // namespace safeops
