// A kernel for each way to be wrong. They run as 2 blocks of 64 threads unless selftest.cu says so.
#pragma once

#include <stdexcept>

#include "selftest.cuh"

namespace {

// --- races on shared memory ---

// The arrays are written before a barrier, so that a schedule cannot make these the lesser error
// of an element that was never written.

__device__ void use(int) {}

__global__ void no_barrier() {
  SAFEOPS_SHARED(int, x, 64);
  x[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = 1;
  if (threadIdx.x >= 32) use(x[threadIdx.x - 32]);
}

__global__ void no_second_barrier() {
  SAFEOPS_SHARED(int, x, 64);
  for (int round = 0; round < 2; ++round) {
    x[threadIdx.x] = round;
    __syncthreads();
    use(x[63 - threadIdx.x]);
  }
}

// Many warps read, and one of the readers writes.
__global__ void no_barrier_after_many_readers() {
  SAFEOPS_SHARED(int, x, 1);
  if (threadIdx.x == 0) x[0] = 0;
  __syncthreads();
  use(x[0]);
  __syncwarp();
  if (threadIdx.x == 40) x[0] = 1;
}

__global__ void two_writers() {
  SAFEOPS_SHARED(int, x, 1);
  if (threadIdx.x == 5 || threadIdx.x == 50) x[0] = 1;
}

__global__ void no_syncwarp() {
  SAFEOPS_SHARED(int, x, 64);
  x[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = 1;
  use(x[threadIdx.x ^ 1]);
}

// What comes after the operation is not ordered by it.
__global__ void no_second_syncwarp() {
  SAFEOPS_SHARED(int, x, 64);
  x[threadIdx.x] = 0;
  __syncwarp();
  use(x[threadIdx.x ^ 1]);
  x[threadIdx.x] = 1;
}

// Two lanes wait for each other, and a third takes it for granted that they did for it.
__global__ void syncwarp_of_others() {
  SAFEOPS_SHARED(int, x, 1);
  if (threadIdx.x == 0) x[0] = 0;
  __syncthreads();
  if (threadIdx.x == 0) x[0] = 1;
  if (threadIdx.x < 2) __syncwarp(0x3);
  if (threadIdx.x == 2) use(x[0]);
}

__global__ void syncwarp_for_another_warp() {
  SAFEOPS_SHARED(int, x, 64);
  x[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = 1;
  __syncwarp();
  use(x[threadIdx.x ^ 32]);
}

__global__ void never_written() {
  SAFEOPS_SHARED(int, x, 64);
  if (threadIdx.x < 63) x[threadIdx.x] = 1;
  __syncthreads();
  use(x[threadIdx.x]);
}

// True in the block that happens to run first.
__device__ bool first_block() {
  static thread_local unsigned first = ~0u;
  if (first == ~0u) first = blockIdx.x;
  return first == blockIdx.x;
}

__global__ void written_by_another_block() {
  SAFEOPS_SHARED(int, x, 64);
  if (first_block()) x[threadIdx.x] = 1;
  __syncthreads();
  use(x[threadIdx.x]);
}

__global__ void index_too_large() {
  SAFEOPS_SHARED(int, x, 64);
  x[threadIdx.x + 1] = 1;
}

__global__ void index_negative() {
  SAFEOPS_SHARED(int, x, 64);
  x[int(threadIdx.x) - 1] = 1;
}

// --- barriers ---

__global__ void barrier_in_branch() {
  if (threadIdx.x < 40) __syncthreads();
}

__global__ void barrier_in_both_branches() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

// clang-format off
__global__ void barriers_of_two_kinds() {
  threadIdx.x < 40 ? __syncthreads_or(1) : __syncthreads_and(1);
}
// clang-format on

__global__ void barrier_and_shuffle() {
  if (threadIdx.x % 32 < 16) {
    __syncthreads();
  } else {
    __shfl_sync(kWholeWarp, 1, 0);
  }
}

// --- warps ---

__global__ void lane_not_in_mask() { __syncwarp(0x0000ffff); }

__global__ void masks_that_differ() { __syncwarp(threadIdx.x % 32 < 16 ? kWholeWarp : 0xffff0000); }

__global__ void operations_that_differ() {
  threadIdx.x % 2 ? __any_sync(kWholeWarp, 1) : __all_sync(kWholeWarp, 1);
}

__global__ void types_that_differ() {
  threadIdx.x % 2 ? __shfl_sync(kWholeWarp, 1, 0) : __shfl_sync(kWholeWarp, 1.0, 0);
}

__global__ void full_shuffle() { __shfl_xor_sync(kWholeWarp, 1, 1); }

__global__ void lane_that_ended() {
  if (threadIdx.x != 9) __syncwarp();
}

__global__ void source_not_in_mask() {
  if (threadIdx.x % 32 < 16) __shfl_down_sync(0x0000ffff, 1, 8);
}

__global__ void shuffles_by_halves() { __shfl_xor_sync(kWholeWarp, 1, 1, 16); }

// --- the rest ---

template <class T> __global__ void misaligned(T* p) { *p = T{}; }

template <class T> T* misaligned_by(int bytes) {
  alignas(16) static char memory[64];
  return reinterpret_cast<T*>(memory + bytes);
}

__global__ void throws_an_exception() {
  __syncthreads();
  if (threadIdx.x == 33) throw std::invalid_argument("not this one");
  __syncthreads();
}

__global__ void throws_a_number() { throw 1; }

__global__ void launches() { launch_kernel(dim3(1), dim3(1), lane_not_in_mask); }

}  // namespace
