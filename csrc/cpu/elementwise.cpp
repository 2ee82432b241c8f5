// Elementwise ops on the CPU: results and registration.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <vector>

#include "../levels.h"
#include "walk.h"

#define SAFEOPS_BODY "loops.inc"
#include "levels.inc"

namespace safeops {
namespace {

const Loops* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_TABLE_OF)};

enum Op {
#define OP(name, inputs, constants) op_##name,
#include "../ops.inc"
};

// Runs the loops over the call's inputs; each wanted output is a new tensor, the others are empty.
std::vector<Tensor> run(const Call& call, const double* constants, Body body, int outputs,
                        int wanted) {
  const Geometry g = broadcast(call.tensor, call.inputs);
  std::vector<Tensor> results;
  void* out[kMaxOutputs] = {};
  const int64_t none = 0, one = 1;
  for (int k = 0; k < outputs; ++k) {
    const bool made = wanted >> k & 1;
    results.push_back(made ? empty(g.dims, g.size.data(), g.out_stride.data(), call.dtype)
                           : empty(1, &none, &one, call.dtype));
    if (!made) continue;
    out[k] = results[k].mutable_data_ptr();
    hint_huge_pages(out[k], g.numel * kElementSize[call.dtype]);
  }
  if (g.numel == 0) return results;
  const Walk walk(call, g, out, body, constants);
  spread(g.numel, kElementSize[call.dtype], walk);
  return results;
}

std::array<double, kConstants> take_constants(Arguments& arguments) {
  std::array<double, kConstants> c;
  for (double& value : c) value = arguments.take<double>();
  return c;
}

const Loops& loops(Op op) { return kTables[current_level.load(std::memory_order_relaxed)][op]; }

// name(inputs..., constants) -> Tensor
template <Op op, int inputs> void value(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  std::vector<Tensor> tensors;
  for (int k = 0; k < inputs; ++k) tensors.push_back(arguments.take<Tensor>());
  const auto constants = take_constants(arguments);
  Call call;
  for (const Tensor& t : tensors) call.add(t);
  call.settle();
  auto results = run(call, constants.data(), loops(op).value[call.dtype], 1, 1);
  stack[0] = torch::stable::detail::from(results[0]);
}

// name_backward(grad, saved, constants) -> Tensor
template <Op op, int inputs> std::enable_if_t<inputs == 1> gradient(StableIValue* stack, uint64_t,
                                                                    uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>(), saved = arguments.take<Tensor>();
  const auto constants = take_constants(arguments);
  Call call;
  call.add(grad);
  call.add(saved);
  call.settle();
  auto results = run(call, constants.data(), loops(op).gradient[1][call.dtype], 1, 1);
  stack[0] = torch::stable::detail::from(results[0]);
}

// name_backward(grad, x?, y, constants, want_x, want_y) -> (Tensor, Tensor)
template <Op op, int inputs> std::enable_if_t<inputs == 2> gradient(StableIValue* stack, uint64_t,
                                                                    uint64_t) {
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
  auto results = run(call, constants.data(), loops(op).gradient[wanted][call.dtype], 2, wanted);
  stack[0] = torch::stable::detail::from(results[0]);
  stack[1] = torch::stable::detail::from(results[1]);
}

}  // namespace
}  // namespace safeops

STABLE_TORCH_LIBRARY_IMPL(safeops, CPU, m) {
#define OP(name, inputs, constants)                           \
  m.impl(#name, &safeops::value<safeops::op_##name, inputs>); \
  m.impl(#name "_backward", &safeops::gradient<safeops::op_##name, inputs>);
#include "../ops.inc"
}
