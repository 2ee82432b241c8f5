// Python tensors as memory that the multi-tensor kernels read and write. Not through the
// dispatcher: DLPack's exchange table tells where a tensor lies without boxing a list of them, and
// a thousand small gradients take no longer to find than to read.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <numeric>

#include "multi_tensor.h"

// Of torch's headers this one alone, whose structs DLPack itself keeps stable.
#undef TORCH_TARGET_VERSION
#include <ATen/dlpack.h>

namespace safeops {

// torch's types, and how to look into their objects.
struct Torch {
  pybind11::object tensor, parameter;
  pybind11::object grad;  // the descriptor: to find it again costs a tenth of a clip of small ones
  DLPackDLTensorFromPyObjectNoSync look;

  bool is_plain(PyObject* object) const {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    return type == tensor.ptr() || type == parameter.ptr();
  }
  pybind11::object grad_of(PyObject* object) const;
};

extern const Torch* torch;  // null without load_torch(); never freed: Python may be gone by then

// Whether this torch has the table, in the version of DLPack that the kernels know.
bool load_torch();

// In an emulated build CPU tensors take the place of those on a GPU.
#if defined(SAFEOPS_EMULATED_CUDA)
constexpr int kGpuType = kDLCPU;
#elif defined(SAFEOPS_CUDA)
constexpr int kGpuType = kDLCUDA;
#else
constexpr int kGpuType = -1;  // of no tensor
#endif

inline bool is_gpu(const DLDevice& device) { return int(device.device_type) == kGpuType; }

inline bool is_contiguous(const DLTensor& t) {
  int64_t next = 1;
  for (int d = t.ndim; t.strides != nullptr && d-- > 0; next *= t.shape[d]) {
    if (t.shape[d] != 1 && t.strides[d] != next) return false;
  }
  return true;
}

// Without gaps or overlaps, in some order of the dimensions.
bool is_dense(const DLTensor& t);

inline bool to_dtype(const DLDataType& type, Dtype* dtype) {
  if (type.lanes != 1) return false;
  if (type.code == kDLBfloat && type.bits == 16) return *dtype = kBFloat16, true;
  if (type.code != kDLFloat) return false;
  if (type.bits == 64) return *dtype = kDouble, true;
  if (type.bits == 32) return *dtype = kFloat, true;
  if (type.bits == 16) return *dtype = kHalf, true;
  return false;
}

// Whether there is a kernel for this object, where it lies, and what else DLPack tells. Here for
// the compiler to inline: lists are long.
inline bool to_span(PyObject* object, Span* span, DLTensor* seen) {
  DLTensor& t = *seen;
  if (!torch->is_plain(object)) return false;
  if (torch->look(object, &t) != 0) {
    PyErr_Clear();
    return false;
  }
  if (t.device.device_type != kDLCPU && !is_gpu(t.device)) return false;
  if (!to_dtype(t.dtype, &span->dtype)) return false;
  span->n = std::accumulate(t.shape, t.shape + t.ndim, int64_t(1), std::multiplies<int64_t>());
  if (span->n != 0 && (t.data == nullptr || !(is_contiguous(t) || is_dense(t)))) return false;
  span->data = static_cast<char*>(t.data) + t.byte_offset;
  return true;
}

}  // namespace safeops
