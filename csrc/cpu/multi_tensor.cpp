// Many tensors at once: cut into chunks, which the threads share; joined in their order.

#include "../multi_tensor.h"

#include <algorithm>
#include <cmath>

#include "../levels.h"
#include "../results.h"
#include "isa.h"

namespace safeops {
namespace {

// The loops over one chunk, at one level.
struct ChunkLoops {
  void (*read[kColumns][2][kDtypes])(const char* data, int64_t n, Reading* result);  // power - 1
  void (*scale[kDtypes])(char* data, int64_t n, const Factor& factor);
  void (*clip[kDtypes])(char* data, int64_t n, const Bounds& bounds);
};

}  // namespace
}  // namespace safeops

#define SAFEOPS_BODY "multi_tensor.inc"
#include "levels.inc"

namespace safeops {
namespace {

#define SAFEOPS_CHUNK_LOOPS(level) &level::table
const ChunkLoops* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_CHUNK_LOOPS)};

const ChunkLoops& loops() { return *kTables[current_level.load(std::memory_order_relaxed)]; }

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

// Each thread from its last chunk to its first: a read before this left the last ones in the cache.
template <class Write> void write_all(const std::vector<Span>& spans, const Write& write) {
  const std::vector<Span> chunks = cut(spans);
  visit_all(chunks, [&](int64_t begin, int64_t end) {
    for (int64_t k = end; k-- > begin;) write(chunks[k]);
  });
}

}  // namespace

namespace cpu {

std::vector<Reading> read(const std::vector<Span>& spans, int power, Columns columns) {
  const auto& read_chunk = loops().read[columns][power - 1];
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

void scale(const std::vector<Span>& spans, const Factor& factor) {
  const auto& scale_chunk = loops().scale;
  write_all(spans, [&](const Span& c) { scale_chunk[c.dtype](c.data, c.n, factor); });
}

void clip(const std::vector<Span>& spans, const Bounds& bounds) {
  const auto& clip_chunk = loops().clip;
  write_all(spans, [&](const Span& c) { clip_chunk[c.dtype](c.data, c.n, bounds); });
}

}  // namespace cpu
}  // namespace safeops
