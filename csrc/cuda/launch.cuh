// Where a call runs, and checked launches on torch's current stream.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace safeops {

// The emulation lets the kernels run on CPU tensors, and cuts a call where a GPU would not.
#ifdef SAFEOPS_EMULATED_CUDA
#define SAFEOPS_CUDA_KEY CPU
constexpr int64_t kMostElements = 1 << 12;

struct OnDevice {
  explicit OnDevice(int32_t) {}
  cudaStream_t stream = nullptr;
};
#else
#define SAFEOPS_CUDA_KEY CUDA
constexpr int64_t kMostElements = int64_t(1) << 30;  // an index fits in 32 bits, sums of two too

class OnDevice {
 public:
  explicit OnDevice(int32_t index) : guard_(index) {
    void* current;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &current));
    stream = static_cast<cudaStream_t>(current);
  }
  cudaStream_t stream;

 private:
  torch::stable::accelerator::DeviceGuard guard_;
};
#endif

inline void check_pieces(int64_t count) {
  if (count >= int64_t(1) << 31) {
    throw std::runtime_error("safeops: too many pieces for one launch: call contiguous() first");
  }
}

template <class... Parameters, class... Arguments>
void launch(const OnDevice& device, int64_t blocks, int threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.stream = device.stream;
  check_pieces(blocks);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  if (error != cudaSuccess) {
    cudaGetLastError();  // else torch's next launch would find it
    throw std::runtime_error(std::string("safeops: a CUDA kernel did not start: ") +
                             cudaGetErrorString(error));
  }
}

constexpr int64_t blocks_for(int64_t count, int64_t each) { return (count + each - 1) / each; }

}  // namespace safeops

#define SAFEOPS_CUDA_LIBRARY_OF(key, m) STABLE_TORCH_LIBRARY_IMPL(safeops, key, m)
#define SAFEOPS_CUDA_LIBRARY(m) SAFEOPS_CUDA_LIBRARY_OF(SAFEOPS_CUDA_KEY, m)
