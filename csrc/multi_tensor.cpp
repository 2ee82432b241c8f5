// What was read of many chunks, put together.

#include "multi_tensor.h"

#include <cmath>

#define SAFEOPS_FN inline

namespace safeops {
namespace {

#include "scalar/readings.h"

Statistics joined(const Reading* chunks, int64_t count, int64_t numel, int power) {
  Reading all;
  for (const Reading* c = chunks; c < chunks + count; ++c) all = together(all, *c, power);
  return statistics_of(all, numel, power);
}

}  // namespace

Factor factor_from(double value, int shift) { return factor_of(value, shift); }

int64_t chunks_of(const std::vector<Span>& spans) {
  int64_t count = 0;
  for (const Span& span : spans) count += chunks_of(span);
  return count;
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

}  // namespace safeops
