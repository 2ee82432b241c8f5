// Many tensors at once: a block takes a chunk of one, and finds it in a table that comes with the
// launch. All threads of a block take the same branches where they wait for each other.
#pragma once

#include "../multi_tensor.h"
#include "device.cuh"

namespace safeops {

constexpr int kLanes = 32, kChunkThreads = 256;
constexpr int kAtOnce = 4;  // vectors that a thread reads before it uses them

// A tensor, or a part of one: its first chunk in the launch, and the elements of its last one.
struct Entry {
  char* data;
  int32_t first, last;
};

// The other parameters of a kernel fit beside it into the 4 KiB that every GPU takes.
constexpr int kEntries = 245;
struct Table {
  Entry entry[kEntries];
  int32_t entries, chunks;
};
static_assert(sizeof(Table) <= 4000);

namespace {

#include "../scalar/finite_clip.h"
#include "../scalar/readings.h"
#include "../scalar/scaled.h"

// --- what a block shares -------------------------------------------------------------------------

// Any value as what shuffles and shared memory take.
template <class T> struct Words { unsigned long long word[sizeof(T) / 8]; };

template <class T> SAFEOPS_FN T of_lane(const T& value, int step) {
  auto words = bitcast<Words<T>>(value);
#pragma unroll
  for (auto& word : words.word) word = __shfl_xor_sync(0xffffffff, word, step);
  return bitcast<T>(words);
}

// The values of all threads joined, in an order that is always the same; for all threads.
template <int threads, class T, class Join> SAFEOPS_FN T over_block(T value, const Join& join) {
  SAFEOPS_SHARED(Words<T>, of_warp, threads / kLanes);
  for (int step = kLanes / 2; step > 0; step /= 2) value = join(value, of_lane(value, step));
  __syncthreads();  // everybody has read what was there before
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = bitcast<Words<T>>(value);
  __syncthreads();
  value = bitcast<T>(Words<T>(of_warp[0]));
  for (int w = 1; w < threads / kLanes; ++w) {
    value = join(value, bitcast<T>(Words<T>(of_warp[w])));
  }
  return value;
}

struct Sum {
  SAFEOPS_FN double operator()(double a, double b) const { return a + b; }
};

template <int power> struct Together {
  SAFEOPS_FN Reading operator()(const Reading& a, const Reading& b) const {
    return together(a, b, power);
  }
};

// --- a chunk -------------------------------------------------------------------------------------

// Whole vectors, and the elements before and after them, of which each thread has one at most.
template <class M> struct Chunk {
  typename M::Word* data;
  int n, head, vectors;

  SAFEOPS_FN int single() const {
    const int thread = threadIdx.x;
    return thread < head ? thread : thread + vectors * kVector<M>;
  }
  SAFEOPS_FN typename M::Word* vector(int i) const { return data + head + i * kVector<M>; }
};

// The entry with the block's chunk.
SAFEOPS_FN int entry_of(const Table& table, int chunk) {
  int low = 0, high = table.entries;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.entry[middle].first <= chunk ? low : high) = middle;
  }
  return low;
}

template <class M> SAFEOPS_FN Chunk<M> chunk_of(const Table& table) {
  using Word = typename M::Word;
  const int block = blockIdx.x, k = entry_of(table, block);
  const int end = k + 1 < table.entries ? table.entry[k + 1].first : table.chunks;
  const int n = block + 1 < end ? int(kChunkBytes / sizeof(Word)) : table.entry[k].last;
  char* const data = table.entry[k].data + (block - table.entry[k].first) * kChunkBytes;
  const int before = -int(reinterpret_cast<uintptr_t>(data) % kVectorBytes) & (kVectorBytes - 1);
  const int head = smaller(before / int(sizeof(Word)), n);
  return {reinterpret_cast<Word*>(data), n, head, (n - head) / kVector<M>};
}

template <class M>
SAFEOPS_FN void load_some(const Chunk<M>& chunk, int first,
                          typename M::F (&x)[kAtOnce][kVector<M>]) {
#pragma unroll
  for (int u = 0; u < kAtOnce; ++u) {
    const int i = first + u * kChunkThreads;
    if (i < chunk.vectors) load<M, kVector<M>>(chunk.vector(i), x[u]);
  }
}

// visit(x, k) for the thread's elements; k says which accumulator is next.
template <class M, class Visit> SAFEOPS_FN void each(const Chunk<M>& chunk, const Visit& visit) {
  constexpr int width = kVector<M>;
  if (chunk.single() < chunk.n) visit(M::widen(chunk.data[chunk.single()]), 0);
  for (int first = threadIdx.x; first < chunk.vectors; first += kAtOnce * kChunkThreads) {
    typename M::F x[kAtOnce][width];
    load_some(chunk, first, x);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const bool there = first + u * kChunkThreads < chunk.vectors;
      for (int j = 0; there && j < width; ++j) visit(x[u][j], u * width + j);
    }
  }
}

// --- the kernels ---------------------------------------------------------------------------------

template <int power> SAFEOPS_FN double plus_power(double sum, double x) {
  return power == 2 ? fma(x, x, sum) : sum + magnitude(x);
}

// The sum of the powers over the block, of op(x) for every x.
template <class M, int power, class Op>
SAFEOPS_FN double sum_of(const Chunk<M>& chunk, const Op& op) {
  double sum[4] = {};
  each(chunk, [&](auto x, int k) { sum[k % 4] = plus_power<power>(sum[k % 4], op(x)); });
  return over_block<kChunkThreads>((sum[0] + sum[1]) + (sum[2] + sum[3]), Sum{});
}

// The same, with what is not finite in the sum; and every column that finite elements have.
template <class M, int power> SAFEOPS_FN Reading details_of(const Chunk<M>& chunk) {
  typename M::F largest = 0;
  double sum[4] = {};
  int zeros = 0, small = 0;
  each(chunk, [&](auto x, int k) {
    sum[k % 4] = plus_power<power>(sum[k % 4], x);
    largest = larger(magnitude(x), largest);
    zeros += bits(magnitude(x)) == 0;
    small += bits(magnitude(x)) < smallest_normal_bits<M>();
  });
  Reading own{(sum[0] + sum[1]) + (sum[2] + sum[3]), 0, largest};
  own.zeros = zeros;
  own.subnormal = small - zeros;
  return over_block<kChunkThreads>(own, Together<power>{});
}

// What a chunk holds that is not finite, and the largest of the others.
template <class M> SAFEOPS_FN Reading stock_of(const Chunk<M>& chunk) {
  using F = typename M::F;
  F largest = 0;
  int nan = 0, posinf = 0, neginf = 0;
  each(chunk, [&](F x, int) {
    nan += x != x;
    posinf += x > format<F>::max;
    neginf += x < -format<F>::max;
    largest = larger(finite(x) ? magnitude(x) : F(0), largest);
  });
  return over_block<kChunkThreads>(Reading{0, 0, largest, nan, posinf, neginf}, Together<1>{});
}

// One read; more of a chunk, which then is still in cache, where the sum is not right.
template <class M, int power, bool detailed>
__global__ void __launch_bounds__(kChunkThreads)
    read_chunks(const Table table, Reading* __restrict__ result) {
  using F = typename M::F;
  const auto chunk = chunk_of<M>(table);
  Reading reading;
  if constexpr (detailed) {
    reading = details_of<M, power>(chunk);
  } else {
    reading.sum = sum_of<M, power>(chunk, [](F x) { return x; });
  }
  if (!is_right<F>(reading.sum)) {
    const int64_t zeros = reading.zeros, subnormal = reading.subnormal;
    reading = stock_of(chunk);
    reading.zeros = zeros;
    reading.subnormal = subnormal;
    const int exponent = exponent_of<F>(reading.largest);
    reading.exponent = exponent;
    reading.sum = sum_of<M, power>(chunk, lowered_value<F>(exponent));
  }
  if (threadIdx.x == 0) result[blockIdx.x] = reading;
}

template <class M, class Op>
SAFEOPS_FN void write_chunk(const Chunk<M>& chunk, const Op& op) {
  constexpr int width = kVector<M>;
  if (chunk.single() < chunk.n) {
    auto* const x = chunk.data + chunk.single();
    *x = M::narrow(op(M::widen(*x)));
  }
  for (int first = threadIdx.x; first < chunk.vectors; first += kAtOnce * kChunkThreads) {
    typename M::F x[kAtOnce][width];
    load_some(chunk, first, x);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = first + u * kChunkThreads;
      for (int j = 0; j < width; ++j) x[u][j] = op(x[u][j]);
      if (i < chunk.vectors) store<M, width>(chunk.vector(i), x[u]);
    }
  }
}

// By a factor that was decided here, if there is a decision, or by the one given.
template <class M>
__global__ void __launch_bounds__(kChunkThreads)
    scale_chunks(const Table table, const Decision* decision, const Factor factor) {
  if (decision != nullptr && !decision->writes) return;
  Factor by = factor;
  if (decision != nullptr) by = decision->factor;
  write_chunk(chunk_of<M>(table), scaled_value<typename M::F>(by));
}

template <class M>
__global__ void __launch_bounds__(kChunkThreads)
    clip_chunks(const Table table, const Bounds bounds) {
  using F = typename M::F;
  write_chunk(chunk_of<M>(table),
              finite_clip_value<F>{F(bounds.min), F(bounds.max), F(bounds.nan), F(M::max)});
}

}  // namespace
}  // namespace safeops
