// Right kernels, and what must come of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "selftest.cuh"

namespace {

// --- a sum: wide loads, a tail, shuffles, shared memory, barriers ---

template <class T> __device__ T sum_of_warp(T v) {
  for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(kWholeWarp, v, lanes);
  return v;
}

// The sum, for all threads. The second barrier lets the next call write again.
template <class Shared> __device__ float sum_of_block(float v, Shared& parts) {
  v = sum_of_warp(v);
  if (flat_thread() % 32 == 0) parts[flat_thread() / 32] = v;
  __syncthreads();
  float total = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) total += parts[i];
  __syncthreads();
  return total;
}

__device__ float sum_of_four(const float* x) {
  const uint4 words = *reinterpret_cast<const uint4*>(x);
  float v[4];
  std::memcpy(v, &words, sizeof v);
  return v[0] + v[1] + v[2] + v[3];
}

// Block b sums row b, twice, to see that shared memory may be used again.
__global__ void __launch_bounds__(1024) sums(const float* x, float* y, int n) {
  SAFEOPS_SHARED(float, parts, 32);
  const float* row = x + int64_t(blockIdx.x) * n;
  const bool wide = n % 4 == 0;
  for (int round = 0; round < 2; ++round) {
    float v = 0;
    const int whole = wide ? n / 4 : 0;
    for (int i = threadIdx.x; i < whole; i += blockDim.x) v += sum_of_four(row + 4 * i);
    for (int i = 4 * whole + threadIdx.x; i < n; i += blockDim.x) v += __ldg(row + i);
    v = sum_of_block(v, parts);
    if (threadIdx.x == 0) y[2 * blockIdx.x + round] = v;
  }
}

void test_sum(int rows, int n, int threads) {
  std::vector<uint4> memory(rows * n / 4 + 1);
  float* const x = reinterpret_cast<float*>(memory.data());
  for (int i = 0; i < rows * n; ++i) x[i] = float(i % 13 - 3);
  std::vector<float> y(2 * rows, -1);
  launch_kernel(dim3(rows), dim3(threads), sums, x, y.data(), n);
  for (int i = 0; i < 2 * rows; ++i) {
    const float* const row = x + i / 2 * n;
    EXPECT(y[i] == std::accumulate(row, row + n, 0.0f));
  }
}

void test_one_sum() { test_sum(3, 1000, 256); }

void test_sums() {
  for (int n : {0, 1, 31, 100, 1000, 4099}) {
    for (int threads : {32, 96, 256, 1024}) test_sum(3, n, threads);
  }
}

// --- several OS threads at once, some of whose kernels are wrong ---

__global__ void fails() { throw std::runtime_error("meant"); }

void test_threads() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int round = 0; round < 5; ++round) {
        test_sum(5, 500 + i, 256);
        bool failed = false;
        try {
          if (i % 2) launch_kernel(dim3(2), dim3(64), fails);
        } catch (const std::runtime_error&) {
          failed = true;
        }
        EXPECT(failed == (i % 2 == 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// --- indices ---

__global__ void count_visits(dim3 grid, dim3 block, int* visits) {
  EXPECT(gridDim.x == grid.x && gridDim.y == grid.y && gridDim.z == grid.z);
  EXPECT(blockDim.x == block.x && blockDim.y == block.y && blockDim.z == block.z);
  const int in_grid = blockIdx.x + grid.x * (blockIdx.y + grid.y * blockIdx.z);
  ++visits[in_grid * (block.x * block.y * block.z) + flat_thread()];
}

void test_shapes() {
  for (dim3 grid : {dim3(1), dim3(7), dim3(3, 4), dim3(2, 3, 5)}) {
    for (dim3 block : {dim3(1), dim3(33), dim3(4, 5), dim3(2, 3, 4)}) {
      std::vector<int> visits(grid.x * grid.y * grid.z * block.x * block.y * block.z);
      launch_kernel(grid, block, count_visits, grid, block, visits.data());
      for (int count : visits) EXPECT(count == 1);
    }
  }
}

// --- kernel parameters ---

struct Large { int word[8000]; };
struct TooLarge { int word[8192]; };

__global__ void read_large(const Large large, int64_t* sum) {
  int64_t own = 0;
  for (int word : large.word) own += word;
  sum[threadIdx.x] = own;
}
__global__ void read_too_large(TooLarge) {}

void test_parameters() {
  Large large;
  std::iota(large.word, large.word + 8000, 0);
  int64_t sum[64] = {};
  launch_kernel(dim3(1), dim3(64), read_large, large, sum);
  for (int64_t one : sum) EXPECT(one == 8000 * 7999 / 2);
}

// --- launches that the hardware does not do ---

__global__ void never() { EXPECT(false); }

template <class... Params, class... Args>
void expect_impossible(dim3 grid, dim3 block, void (*kernel)(Params...), const Args&... arguments) {
  const cudaLaunchConfig_t config{grid, block, 0, nullptr, nullptr, 0};
  EXPECT(cudaLaunchKernelEx(&config, kernel, arguments...) == cudaErrorInvalidConfiguration);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaSuccess);
}

void test_limits() {
  for (dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1u << 31), dim3(1, 65536)}) {
    expect_impossible(grid, dim3(1), never);
  }
  for (dim3 block : {dim3(0), dim3(1, 0), dim3(1025), dim3(32, 33), dim3(1, 1, 65)}) {
    expect_impossible(dim3(1), block, never);
  }
  expect_impossible(dim3(1), dim3(1), read_too_large, TooLarge{});
}

// --- warps ---

__global__ void votes() {
  const int thread = threadIdx.x, lane = thread % 32;
  EXPECT(__ballot_sync(kWholeWarp, lane % 3 == 0) == 0x49249249);
  EXPECT(__any_sync(kWholeWarp, lane == 7) && !__any_sync(kWholeWarp, 0));
  EXPECT(__all_sync(kWholeWarp, 5) && !__all_sync(kWholeWarp, lane != 7));
  EXPECT(__syncthreads_or(thread == 40) && !__syncthreads_or(0));
  EXPECT(__syncthreads_and(2) && !__syncthreads_and(thread != 40));
}

template <class T> __device__ void shuffle_all_ways() {
  const int lane = threadIdx.x % 32;
  const T step = T(1) / T(3) + T(3), own = T(lane) * step;
  EXPECT(__shfl_sync(kWholeWarp, own, 5) == T(5) * step);
  EXPECT(__shfl_sync(kWholeWarp, own, lane + 33) == T((lane + 1) % 32) * step);
  EXPECT(__shfl_xor_sync(kWholeWarp, own, 9) == T(lane ^ 9) * step);
  EXPECT(__shfl_down_sync(kWholeWarp, own, 3) == T(lane + 3 < 32 ? lane + 3 : lane) * step);
}

__global__ void shuffles() {
  shuffle_all_ways<int>(), shuffle_all_ways<unsigned>();
  shuffle_all_ways<long>(), shuffle_all_ways<unsigned long>();
  shuffle_all_ways<long long>(), shuffle_all_ways<unsigned long long>();
  shuffle_all_ways<float>(), shuffle_all_ways<double>();
}

// Parts of a warp go their own ways.
__global__ void masks() {
  const int lane = threadIdx.x % 32;
  const unsigned mask = lane < 8 ? 0x000000ff : 0xffffff00;
  for (int round = 0; round < (lane < 8 ? 5 : 2); ++round) {
    EXPECT(__shfl_xor_sync(mask, lane, 7) == (lane ^ 7));
    EXPECT(__ballot_sync(mask, 1) == mask);
  }
  __syncwarp();
  if (lane == 3) EXPECT(__shfl_sync(1u << 3, lane, 3) == 3);
}

// --- shared memory that is ordered ---

__global__ void ordered_by_warps() {
  SAFEOPS_SHARED(int, x, 64);
  const int thread = threadIdx.x, next = thread ^ 1;
  x[thread] = thread;
  __syncwarp();
  const int seen = x[next];
  EXPECT(seen == next && __any_sync(kWholeWarp, 1));
  x[next] = 100 + thread;
  EXPECT(__shfl_sync(0x3u << (thread % 32 & ~1), thread, next % 32) == next);
  EXPECT(x[thread] == 100 + next);
}

__global__ void ordered_by_barriers() {
  SAFEOPS_SHARED(double, x, 64);
  for (int round = 0; round < 3; ++round) {
    x[threadIdx.x] = threadIdx.x + round;
    __syncthreads();
    for (int i = 0; i < 64; ++i) EXPECT(x[i] == i + round);
    if (__syncthreads_or(round == 1)) x[63 - threadIdx.x] = 0;
    __syncthreads();
  }
}

// --- the schedule ---

// Who came by, in order: threads between barriers, and the blocks.
__global__ void note_order(std::vector<int>* threads, std::vector<int>* blocks) {
  if (threadIdx.x == 0) blocks->push_back(blockIdx.x);
  for (int round = 0; round < 3; ++round) {
    if (blockIdx.x == 0) threads->push_back(threadIdx.x);
    __syncthreads();
  }
}

void print_order() {
  std::vector<int> threads, blocks;
  launch_kernel(dim3(20), dim3(64), note_order, &threads, &blocks);
  for (const std::vector<int>& order : {threads, blocks}) {
    for (int i : order) std::printf("%d ", i);
    std::puts("");
  }
}

}  // namespace
