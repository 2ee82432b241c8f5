// One call of an elementwise op: its boxed form, its operands and its results. A Backend has
// run(call, geometry, out, constants, op, wanted).
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "broadcast.h"
#include "results.h"

namespace safeops {

enum ElementwiseOp {
#define OP(name, inputs, constants) op_##name,
#include "ops.inc"
};

using Constants = std::array<double, kConstants>;
constexpr int kValue = 0;  // as `wanted`: not a set of gradients but the op itself

inline double half_to_double(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? __builtin_nan("") : sign * __builtin_inf();
  const double size = exponent ? 1024 + mantissa : mantissa;
  return sign * size * __builtin_ldexp(1, std::max(exponent, 1) - 25);
}

inline double bfloat16_to_double(uint16_t b) {
  const uint32_t word = uint32_t(b) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline double read(const void* data, Dtype dtype, int64_t i) {
  switch (dtype) {
    case kDouble:
      return static_cast<const double*>(data)[i];
    case kFloat:
      return static_cast<const float*>(data)[i];
    case kHalf:
      return half_to_double(static_cast<const uint16_t*>(data)[i]);
    default:
      return bfloat16_to_double(static_cast<const uint16_t*>(data)[i]);
  }
}

// One element as a number; every NaN is the default one.
inline double element(const void* data, Dtype dtype, int64_t i) {
  const double value = read(data, dtype, i);
  return value == value ? value : __builtin_nan("");
}

// The inputs of one call. A 0-dim input may have another dtype (the compute type): it is read as
// one value and never rounded to the dtype of the others.
struct Call {
  const Tensor* tensor[kMaxInputs];
  const void* data[kMaxInputs];
  Dtype own[kMaxInputs];
  int inputs = 0;
  Dtype dtype = kDouble;
  int home = 0;  // the input whose device the results take: a 0-dim CPU tensor goes with every one

  void add(const Tensor& t) {
    tensor[inputs] = &t;
    data[inputs] = t.const_data_ptr();
    own[inputs++] = dtype_of(t);
  }

  void settle() {
    int widest = 0;
    for (int k = 1; k < inputs; ++k) {
      if (tensor[k]->dim() > 0 && tensor[widest]->dim() == 0) widest = k;
    }
    dtype = own[widest];
    home = widest;
    for (int k = inputs; k-- > 0;) {
      if (!tensor[k]->is_cpu()) home = k;
    }
    for (int k = 0; k < inputs; ++k) {
      STD_TORCH_CHECK(own[k] == dtype || tensor[k]->dim() == 0,
                      "safeops: expected operands of one dtype");
    }
  }
};

// The results: each wanted one is a new tensor, the others are empty.
template <class Backend>
std::vector<Tensor> made(const Call& call, const Constants& constants, ElementwiseOp op, int wanted,
                         int outputs = 1) {
  const Geometry g = broadcast(call.tensor, call.inputs);
  const Tensor& like = *call.tensor[call.home];
  std::vector<Tensor> results;
  void* out[kMaxOutputs] = {};
  const int64_t none = 0, one = 1;
  for (int k = 0; k < outputs; ++k) {
    const bool is_made = outputs == 1 || (wanted >> k & 1);
    results.push_back(
        is_made ? empty(g.dims, g.size.data(), g.out_stride.data(), g.numel, call.dtype, like)
                : empty(1, &none, &one, 0, call.dtype, like));
    if (is_made) out[k] = results[k].mutable_data_ptr();
  }
  if (g.numel > 0) Backend::run(call, g, out, constants.data(), op, wanted);
  return results;
}

inline Constants take_constants(Arguments& arguments) {
  Constants c;
  for (double& value : c) value = arguments.take<double>();
  return c;
}

// name(inputs..., constants) -> Tensor
template <class Backend, ElementwiseOp op, int inputs> void value(StableIValue* stack, uint64_t,
                                                                  uint64_t) {
  Arguments arguments{stack};
  std::vector<Tensor> tensors;
  for (int k = 0; k < inputs; ++k) tensors.push_back(arguments.take<Tensor>());
  const auto constants = take_constants(arguments);
  Call call;
  for (const Tensor& t : tensors) call.add(t);
  call.settle();
  auto results = made<Backend>(call, constants, op, kValue);
  stack[0] = torch::stable::detail::from(results[0]);
}

// name_backward(grad, saved, constants) -> Tensor
template <class Backend, ElementwiseOp op, int inputs> std::enable_if_t<inputs == 1> gradient(
    StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>(), saved = arguments.take<Tensor>();
  const auto constants = take_constants(arguments);
  Call call;
  call.add(grad);
  call.add(saved);
  call.settle();
  auto results = made<Backend>(call, constants, op, 1);
  stack[0] = torch::stable::detail::from(results[0]);
}

// name_backward(grad, x?, y, constants, want_x, want_y) -> (Tensor, Tensor)
template <class Backend, ElementwiseOp op, int inputs> std::enable_if_t<inputs == 2> gradient(
    StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>();
  const auto x = arguments.take<std::optional<Tensor>>();
  const Tensor y = arguments.take<Tensor>();
  const auto constants = take_constants(arguments);
  const bool want_x = arguments.take<bool>();
  const bool want_y = arguments.take<bool>();
  const int wanted = int(want_x) + 2 * int(want_y);
  if (wanted == 0) throw std::runtime_error("safeops: no gradient is wanted");
  STD_TORCH_CHECK(x || !(wanted & 2),
                  "safeops: the gradient to the second operand needs the first");
  Call call;
  call.add(grad);
  call.add(x ? *x : y);
  call.add(y);
  call.settle();
  auto results = made<Backend>(call, constants, op, wanted, 2);
  stack[0] = torch::stable::detail::from(results[0]);
  stack[1] = torch::stable::detail::from(results[1]);
}

}  // namespace safeops
