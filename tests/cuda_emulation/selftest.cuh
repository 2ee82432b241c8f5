// What the self-tests share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

// Also inside a kernel, where an exception would be taken for an error that was meant.
#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace {

constexpr unsigned kWholeWarp = 0xffffffff;

template <class... Params, class... Args>
void launch_kernel(dim3 grid, dim3 block, void (*kernel)(Params...), const Args&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  EXPECT(cudaLaunchKernelEx(&config, kernel, Params(arguments)...) == cudaSuccess);
}

__device__ __forceinline__ int flat_thread() {
  return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

}  // namespace
