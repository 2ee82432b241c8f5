// Row ops on the CPU: which way a call is walked, threads, registration.

#include <torch/csrc/stable/library.h>

#include "../levels.h"
#include "line_walk.h"
#include "strip_walk.h"

#define SAFEOPS_BODY "row_table.inc"
#include "levels.inc"

namespace safeops {
namespace {

#define SAFEOPS_ROW_TABLE(level) &level::table
const RowKernels* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_ROW_TABLE)};

const RowKernels& table() { return *kTables[current_level.load(std::memory_order_relaxed)]; }

bool lies_in_lines(const RowCall& call) {
  if (call.reduced.numel <= 1) return false;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && !call.lies_along(k)) return false;
  }
  return true;
}

bool lies_in_strips(const RowCall& call) {
  const int64_t inner = call.kept.walk_size[0];
  if (call.reduced.numel == 0 || call.reduced.walked > 1) return false;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && call.kept.stride[k][0] != 1 && inner != 1) return false;
  }
  return call.reduced.numel == 1 || inner >= kNarrow || foldable(call);
}

void run_strips(const RowCall& call) {
  const int64_t threads = torch::stable::get_num_threads();
  const StripWalk walk(call, table(), threads);
  if (walk.tasks() >= threads || walk.work() < 2 * kGrainBytes || walk.blocks() == 1) {
    return spread(walk.tasks(), walk.work(), walk);
  }
  for (int64_t task = 0; task < walk.tasks(); ++task) walk.split(task);
}

void run_lines(const RowCall& call) {
  const LineWalk walk(call, table());
  const int64_t lines = call.kept.numel, threads = torch::stable::get_num_threads();
  if (lines < threads && walk.divisible()) {
    for (int64_t line = 0; line < lines; ++line) walk.split(line);
  } else {
    spread(lines, call.reduced.numel * kElementSize[call.dtype], walk);
  }
}

void walk(const RowCall& call) {
  if (call.kept.numel == 0 || (call.reduced.numel == 0 && call.whole[call.out])) return;
  if (!lies_in_lines(call) && lies_in_strips(call)) {
    run_strips(call);
  } else {
    run_lines(call);
  }
}

int64_t bits_of(const Tensor& x, const std::vector<int64_t>& dims) {
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
Tensor run(RowCall& call, bool whole, const Tensor& x, const std::optional<Tensor>& mask) {
  Tensor result = call.make_out(whole, x);
  if (mask) call.add_mask(*mask);
  call.settle();
  walk(call);
  return result;
}

// softmax(x, dim, mask) -> Tensor
template <RowOp op> void pointwise(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor x = arguments.take<Tensor>();
  const auto dim = arguments.take<int64_t>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(op, x, bits_of(x, {dim}));
  call.add(x, true);
  stack[0] = torch::stable::detail::from(run(call, true, x, mask));
}

// softmax_backward(grad, result, dim, mask) -> Tensor
template <RowOp op> void pointwise_backward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>(), result = arguments.take<Tensor>();
  const auto dim = arguments.take<int64_t>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(op, grad, bits_of(grad, {dim}));
  call.backward = true;
  call.add(grad, true);
  call.add(result, true);
  stack[0] = torch::stable::detail::from(run(call, true, grad, mask));
}

// logsumexp(x, dim, keepdim, mask) -> Tensor
void reduction(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor x = arguments.take<Tensor>();
  const auto dims = arguments.take<std::vector<int64_t>>();
  const bool keepdim = arguments.take<bool>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(kLogSumExp, x, bits_of(x, dims));
  call.keepdim = keepdim;
  call.add(x, true);
  stack[0] = torch::stable::detail::from(run(call, false, x, mask));
}

// logsumexp_backward(grad, x, result, dim, keepdim, mask) -> Tensor
void reduction_backward(StableIValue* stack, uint64_t, uint64_t) {
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
  stack[0] = torch::stable::detail::from(run(call, true, x, mask));
}

}  // namespace
}  // namespace safeops

STABLE_TORCH_LIBRARY_IMPL(safeops, CPU, m) {
  using namespace safeops;
  m.impl("softmax", &pointwise<kSoftmax>);
  m.impl("softmax_backward", &pointwise_backward<kSoftmax>);
  m.impl("log_softmax", &pointwise<kLogSoftmax>);
  m.impl("log_softmax_backward", &pointwise_backward<kLogSoftmax>);
  m.impl("logsumexp", &reduction);
  m.impl("logsumexp_backward", &reduction_backward);
}
