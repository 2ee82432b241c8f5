// Many tensors at once on a GPU: tables of those of one dtype, and a launch for each.

#include "decide.cuh"

#include <algorithm>

#include "launch.cuh"

namespace safeops {
namespace cuda {
namespace {

constexpr int64_t kMostChunks = kMostElements >> 9;  // of a launch; emulated ones cut tensors

// launch(dtype, table, first chunk) for the spans, in their order.
template <class Launch> class Tables {
 public:
  explicit Tables(const Launch& launch) : launch_(launch) {}

  void add(const Span& span) {
    if (span.dtype != dtype_) flush();
    dtype_ = span.dtype;
    const int64_t size = chunk_size(span.dtype);
    for (int64_t i = 0, n; i < span.n; i += n) {
      if (table_.entries == kEntries || table_.chunks == kMostChunks) flush();
      n = std::min(span.n - i, (kMostChunks - table_.chunks) * size);
      add_entry({span.data + i * kElementSize[span.dtype], n, span.dtype});
    }
  }

  void flush() {
    if (table_.chunks > 0) launch_(dtype_, table_, done_);
    done_ += table_.chunks;
    table_.entries = table_.chunks = 0;
  }

 private:
  void add_entry(const Span& span) {
    const int64_t size = chunk_size(span.dtype);
    const auto last = int32_t((span.n - 1) % size + 1);
    table_.entry[table_.entries++] = {span.data, table_.chunks, last};
    table_.chunks += int32_t(chunks_of(span));
  }

  const Launch& launch_;
  Table table_{};
  Dtype dtype_ = kDouble;
  int64_t done_ = 0;
};

template <class Launch> void in_tables(const std::vector<Span>& spans, const Launch& launch) {
  Tables<Launch> tables(launch);
  for (const Span& span : spans) tables.add(span);
  tables.flush();
}

#define SAFEOPS_DTYPES(kernel, ...)                                               \
  {kernel<memory<kDouble>, ##__VA_ARGS__>, kernel<memory<kFloat>, ##__VA_ARGS__>, \
   kernel<memory<kHalf>, ##__VA_ARGS__>, kernel<memory<kBFloat16>, ##__VA_ARGS__>}

void (*const kRead[2][2][kDtypes])(Table, Reading*) = {
    {SAFEOPS_DTYPES(read_chunks, 1, false), SAFEOPS_DTYPES(read_chunks, 2, false)},
    {SAFEOPS_DTYPES(read_chunks, 1, true), SAFEOPS_DTYPES(read_chunks, 2, true)}};
void (*const kScale[kDtypes])(Table, const Decision*, Factor) = SAFEOPS_DTYPES(scale_chunks);
void (*const kClip[kDtypes])(Table, Bounds) = SAFEOPS_DTYPES(clip_chunks);

void scale_by(int device, const std::vector<Span>& spans, const Decision* decision,
              const Factor& factor) {
  const OnDevice here(device);
  in_tables(spans, [&](Dtype dtype, const Table& table, int64_t) {
    launch(here, table.chunks, kChunkThreads, kScale[dtype], table, decision, factor);
  });
}

}  // namespace

void read(int device, const std::vector<Span>& spans, int power, Columns columns, Reading* chunks) {
  const OnDevice here(device);
  in_tables(spans, [&](Dtype dtype, const Table& table, int64_t first) {
    const auto kernel = kRead[columns != kNorm][power - 1][dtype];
    launch(here, table.chunks, kChunkThreads, kernel, table, chunks + first);
  });
}

void decide(int device, const std::vector<Span>& spans, const Reading* chunks, int power,
            const Goal& goal, Decision* decision, void* norm, bool wide) {
  int64_t numel = 0;
  for (const Span& span : spans) numel += span.n;
  launch(OnDevice(device), 1, kDecideThreads, decide_clip, chunks, chunks_of(spans), numel, power,
         goal, decision, norm, wide);
}

void scale(int device, const std::vector<Span>& spans, const Factor& factor) {
  scale_by(device, spans, nullptr, factor);
}

void scale_if(int device, const std::vector<Span>& spans, const Decision* decision) {
  scale_by(device, spans, decision, {1, 1});
}

void clip(int device, const std::vector<Span>& spans, const Bounds& bounds) {
  const OnDevice here(device);
  in_tables(spans, [&](Dtype dtype, const Table& table, int64_t) {
    launch(here, table.chunks, kChunkThreads, kClip[dtype], table, bounds);
  });
}

}  // namespace cuda
}  // namespace safeops
