// The boxed forms of the row ops. A Backend has walk(call).
#pragma once

#include <torch/csrc/stable/library.h>

#include "row_call.h"

namespace safeops {

inline int64_t bits_of(const Tensor& x, const std::vector<int64_t>& dims) {
  int64_t bits = 0;
  for (int64_t d : dims) {
    if (d < 0 || d >= std::min<int64_t>(std::max<int64_t>(x.dim(), 1), kMaxDims)) {
      throw std::runtime_error("safeops: no dimension " + std::to_string(d) + " among " +
                               std::to_string(x.dim()));
    }
    bits |= int64_t(1) << d;
  }
  return bits;
}

// The call on the inputs that it has, and a mask: its result, which has whole lines or one element
// each.
template <class Backend>
Tensor run(RowCall& call, bool whole, const std::optional<Tensor>& mask) {
  Tensor result = call.make_out(whole);
  if (mask) call.add_mask(*mask);
  call.settle();
  const bool none = call.kept.numel == 0 || (call.reduced.numel == 0 && whole);
  if (!none) Backend::walk(call);
  return result;
}

// softmax(x, dim, mask) -> Tensor
template <class Backend, RowOp op> void pointwise(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor x = arguments.take<Tensor>();
  const auto dim = arguments.take<int64_t>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(op, x, bits_of(x, {dim}));
  call.add(x, true);
  stack[0] = torch::stable::detail::from(run<Backend>(call, true, mask));
}

// softmax_backward(grad, result, dim, mask) -> Tensor
template <class Backend, RowOp op> void pointwise_backward(StableIValue* stack, uint64_t,
                                                           uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>(), result = arguments.take<Tensor>();
  const auto dim = arguments.take<int64_t>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(op, grad, bits_of(grad, {dim}));
  call.backward = true;
  call.add(grad, true);
  call.add(result, true);
  stack[0] = torch::stable::detail::from(run<Backend>(call, true, mask));
}

// logsumexp(x, dim, keepdim, mask) -> Tensor
template <class Backend> void reduction(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor x = arguments.take<Tensor>();
  const auto dims = arguments.take<std::vector<int64_t>>();
  const bool keepdim = arguments.take<bool>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(kLogSumExp, x, bits_of(x, dims));
  call.keepdim = keepdim;
  call.add(x, true);
  stack[0] = torch::stable::detail::from(run<Backend>(call, false, mask));
}

// logsumexp_backward(grad, x, result, dim, keepdim, mask) -> Tensor
template <class Backend> void reduction_backward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>();
  const Tensor x = arguments.take<Tensor>();
  const Tensor result = arguments.take<Tensor>();
  const auto dims = arguments.take<std::vector<int64_t>>();
  const bool keepdim = arguments.take<bool>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(kLogSumExp, x, bits_of(x, dims));
  call.backward = true;
  call.keepdim = keepdim;
  call.add(x, true);
  call.add(grad, false);
  call.add(result, false);
  stack[0] = torch::stable::detail::from(run<Backend>(call, true, mask));
}

template <class Backend> void register_rows(torch::stable::detail::StableLibrary& m) {
  m.impl("softmax", &pointwise<Backend, kSoftmax>);
  m.impl("softmax_backward", &pointwise_backward<Backend, kSoftmax>);
  m.impl("log_softmax", &pointwise<Backend, kLogSoftmax>);
  m.impl("log_softmax_backward", &pointwise_backward<Backend, kLogSoftmax>);
  m.impl("logsumexp", &reduction<Backend>);
  m.impl("logsumexp_backward", &reduction_backward<Backend>);
}

}  // namespace safeops
