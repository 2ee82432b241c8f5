// Elementwise ops on the CPU: levels, results, registration.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "../levels.h"
#include "walk.h"

#if SAFEOPS_X86
#define SAFEOPS_BYTES 64
SAFEOPS_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")
#define SAFEOPS_LEVEL avx512
#include "level.inc"
SAFEOPS_TARGET_END
#undef SAFEOPS_BYTES
#undef SAFEOPS_LEVEL

#define SAFEOPS_BYTES 32
SAFEOPS_TARGET("avx2,fma,f16c,bmi,bmi2")
#define SAFEOPS_LEVEL avx2
#include "level.inc"
SAFEOPS_TARGET_END
#else
#define SAFEOPS_BYTES 16
#define SAFEOPS_LEVEL native
#include "level.inc"
#endif

namespace safeops {
namespace {

const Level kLevels[] = {
#if SAFEOPS_X86
    {"avx512", avx512::table},
    {"avx2", avx2::table},
#else
    {"native", native::table},
#endif
};
std::atomic<const Level*> current{&kLevels[std::size(kLevels) - 1]};

enum Op {
#define OP(name, inputs, constants) op_##name,
#include "../ops.inc"
};

constexpr int64_t kHugeFrom = 32 << 20, kHugeTo = 128 << 20;
constexpr int64_t kGrainBytes = 1 << 16;  // work a thread needs to be worth waking

int32_t torch_dtype(Dtype dtype) {
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

Tensor empty(int dims, const int64_t* size, const int64_t* stride, Dtype dtype) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dims, size, stride, torch_dtype(dtype),
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

// A fresh tensor of this size is new pages, and faulting them in costs more than the op: ask for
// huge ones. Measured to pay in this range only.
void hint_huge_pages(void* data, int64_t bytes) {
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
  const int64_t grain = kGrainBytes / kElementSize[call.dtype];
  if (g.numel <= grain) {
    walk(0, g.numel);
  } else {
    torch::stable::parallel_for(0, g.numel, grain, walk);
  }
  return results;
}

// The stack of a boxed call, read from the front.
struct Arguments {
  StableIValue* next;

  template <class T> T take() { return torch::stable::detail::to<T>(*next++); }
  std::array<double, kConstants> constants() {
    std::array<double, kConstants> c;
    for (double& value : c) value = take<double>();
    return c;
  }
};

const Loops& loops(Op op) { return current.load(std::memory_order_relaxed)->loops[op]; }

// name(inputs..., constants) -> Tensor
template <Op op, int inputs> void value(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  std::vector<Tensor> tensors;
  for (int k = 0; k < inputs; ++k) tensors.push_back(arguments.take<Tensor>());
  const auto constants = arguments.constants();
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
  const auto constants = arguments.constants();
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
  const auto constants = arguments.constants();
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

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const Level& level : kLevels) names.emplace_back(level.name);
  return names;
}

std::string level_name() { return current.load()->name; }

bool use_level(const std::string& name) {
  for (const Level& level : kLevels) {
    if (name == level.name) {
      current = &level;
      return true;
    }
  }
  return false;
}

}  // namespace safeops

STABLE_TORCH_LIBRARY_IMPL(safeops, CPU, m) {
#define OP(name, inputs, constants)                           \
  m.impl(#name, &safeops::value<safeops::op_##name, inputs>); \
  m.impl(#name "_backward", &safeops::gradient<safeops::op_##name, inputs>);
#include "../ops.inc"
}
