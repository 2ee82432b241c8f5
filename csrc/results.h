// Dtypes and new tensors.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <stdexcept>

#include "kinds.h"

namespace safeops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrainBytes = 1 << 16;  // work a thread needs to be worth waking
constexpr int64_t kHugeFrom = 32 << 20, kHugeTo = 128 << 20;

inline Dtype dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Double:
      return kDouble;
    case ScalarType::Float:
      return kFloat;
    case ScalarType::Half:
      return kHalf;
    case ScalarType::BFloat16:
      return kBFloat16;
    default:
      break;
  }
  throw std::runtime_error("safeops: expected float64, float32, float16 or bfloat16");
}

inline int32_t torch_dtype(Dtype dtype) {
  switch (dtype) {
    case kDouble:
      return aoti_torch_dtype_float64();
    case kFloat:
      return aoti_torch_dtype_float32();
    case kHalf:
      return aoti_torch_dtype_float16();
    default:
      return aoti_torch_dtype_bfloat16();
  }
}

// A fresh tensor of this size is new pages, and faulting them in costs more than the op: ask for
// huge ones. Measured to pay in this range only.
inline void hint_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  constexpr int64_t page = 1 << 21;
  if (bytes < kHugeFrom || bytes > kHugeTo) return;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) & ~uintptr_t(page - 1);
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~uintptr_t(page - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

// walk(begin, end) over all of [0, count), each a number of bytes of work, by as many threads as
// are worth waking.
template <class Walk> void spread(int64_t count, int64_t bytes, const Walk& walk) {
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, bytes));
  if (count <= grain) {
    walk(0, count);
  } else {
    torch::stable::parallel_for(0, count, grain, walk);
  }
}

// A tensor of numel elements on the device of another one.
inline Tensor empty(int dims, const int64_t* size, const int64_t* stride, int64_t numel,
                    Dtype dtype, const Tensor& like) {
  AtenTensorHandle handle;
  int32_t device;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dims, size, stride, torch_dtype(dtype), device,
                                                  like.get_device_index(), &handle));
  const Tensor result(handle);
  if (device == aoti_torch_device_type_cpu()) {
    hint_huge_pages(result.mutable_data_ptr(), numel * kElementSize[dtype]);
  }
  return result;
}

// The stack of a boxed call, read from the front.
struct Arguments {
  StableIValue* next;

  template <class T> T take() { return torch::stable::detail::to<T>(*next++); }
};

}  // namespace safeops
