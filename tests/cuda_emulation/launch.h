// Errors, streams and launches of the CUDA run-time library.
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <utility>

#include "block.h"

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };

using cudaStream_t = struct CUstream_st*;

struct cudaLaunchAttribute;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace cuda_emulation {

inline thread_local cudaError_t last_error = cudaSuccess;

inline cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// The limits of every GPU since compute capability 7.0.
inline bool possible(const cudaLaunchConfig_t& config, size_t parameter_bytes) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || block.x < 1 || block.y < 1 || block.z < 1) {
    return false;
  }
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) return false;
  if (block.x > kMaxThreads || block.y > kMaxThreads || block.z > 64) return false;
  return block.x * block.y * block.z <= kMaxThreads && parameter_bytes <= 32764;
}

inline void check_supported(const cudaLaunchConfig_t& config) {
  if (Block::current() != nullptr) fail("a launch from inside a kernel");
  if (config.dynamicSmemBytes > 0) fail("dynamic shared memory is not emulated");
}

inline cudaError_t launch(const cudaLaunchConfig_t& config, size_t parameter_bytes,
                          const std::function<void()>& kernel) {
  if (!possible(config, parameter_bytes)) return noted(cudaErrorInvalidConfiguration);
  check_supported(config);
  const dim3 grid = gridDim = config.gridDim;
  blockDim = config.blockDim;
  const uint64_t count = uint64_t(grid.x) * grid.y * grid.z;
  BlockOrder order(Schedule::current(), count);
  Block block(config.blockDim, kernel);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = order.next(), row = at / grid.x;
    blockIdx = {unsigned(at % grid.x), unsigned(row % grid.y), unsigned(row / grid.y)};
    block.run();
  }
  return cudaSuccess;
}

template <class... Params> constexpr size_t bytes_of_parameters() {
  size_t bytes = 0;
  ((bytes = (bytes + alignof(Params) - 1) / alignof(Params) * alignof(Params) + sizeof(Params)),
   ...);
  return bytes;
}

}  // namespace cuda_emulation

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  const auto run = [&](Params... values) {
    return cuda_emulation::launch(*config, cuda_emulation::bytes_of_parameters<Params...>(),
                                  [&] { kernel(values...); });
  };
  return run(std::forward<Args>(args)...);
}

inline cudaError_t cudaPeekAtLastError() { return cuda_emulation::last_error; }

inline cudaError_t cudaGetLastError() {
  return std::exchange(cuda_emulation::last_error, cudaSuccess);
}

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}
