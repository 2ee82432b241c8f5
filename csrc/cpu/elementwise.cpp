// Elementwise ops on the CPU: levels, dtypes, the walk over broadcast operands, registration.

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
#include "broadcast.h"

#if SAFEOPS_X86
#define SAFEOPS_BYTES 64
SAFEOPS_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,prefer-vector-width=512")
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

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

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

constexpr int64_t kElementSize[] = {8, 4, 2, 2};
constexpr int64_t kBlock = 1024;    // elements gathered at a time, into the first cache
constexpr int64_t kShortRow = 128;  // rows below this are gathered several at a time
constexpr int64_t kHugeFrom = 32 << 20, kHugeTo = 128 << 20;
constexpr int64_t kGrainBytes = 1 << 16;  // work a thread needs to be worth waking

Dtype dtype_of(const Tensor& t) {
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
  STD_TORCH_CHECK(false, "safeops: expected float64, float32, float16 or bfloat16");
}

double half_to_double(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? __builtin_nan("") : sign * __builtin_inf();
  const double size = exponent ? 1024 + mantissa : mantissa;
  return sign * size * __builtin_ldexp(1, std::max(exponent, 1) - 25);
}

double bfloat16_to_double(uint16_t b) {
  const uint32_t word = uint32_t(b) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

double read(const void* data, Dtype dtype, int64_t i) {
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
double element(const void* data, Dtype dtype, int64_t i) {
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
    for (int k = 0; k < inputs; ++k) {
      STD_TORCH_CHECK(own[k] == dtype || tensor[k]->dim() == 0,
                      "safeops: expected operands of one dtype");
    }
  }
};

class Walk {
 public:
  Walk(const Call& call, const Geometry& geometry, void* const* out, Body body,
       const double* constants)
      : call_(call), g_(geometry), body_(body) {
    for (int k = 0; k < kMaxOutputs; ++k) out_[k] = static_cast<char*>(out[k]);
    run_.constants = constants;
    for (int k = 0; k < call.inputs; ++k) find_kind(k);
  }

  void operator()(int64_t begin, int64_t end) const {
    Run run = run_;
    if (!needs_position_) return block(run, begin, end - begin);
    alignas(64) char buffer[kMaxInputs][kBlock * sizeof(double)];
    int64_t kept = 0;  // elements in the buffers of periodic operands, from the start of a row
    while (begin < end) {
      const Position position(g_, begin);
      const int64_t n = std::min(end - begin, length(position));
      const bool whole = whole_rows() && position.at[0] == 0;
      for (int k = 0; k < call_.inputs; ++k) {
        if (!(whole && periodic_[k] && n <= kept)) place(run, k, position, buffer[k], n);
      }
      kept = whole ? std::max(kept, n) : 0;
      block(run, begin, n);
      begin += n;
    }
  }

 private:
  enum Kind { kDense, kScalar, kRow, kRepeated, kGathered };

  void find_kind(int k) {
    const Sizes& stride = g_.stride[k];
    bool dense = true, scalar = true;
    int64_t expected = 1;
    for (int d = 0; d < g_.walked; ++d) {
      dense &= stride[d] == expected;
      scalar &= stride[d] == 0;
      expected *= g_.walk_size[d];
    }
    const bool long_rows = g_.walk_size[0] >= kShortRow;
    kind_[k] = scalar                        ? kScalar
               : dense                       ? kDense
               : long_rows && stride[0] == 1 ? kRow
               : long_rows && stride[0] == 0 ? kRepeated
                                             : kGathered;
    run_.scalar[k] = kind_[k] == kScalar || kind_[k] == kRepeated;
    run_.value[k] = scalar ? element(call_.data[k], call_.own[k], 0) : 0;
    periodic_[k] = kind_[k] == kGathered;
    for (int d = 1; d < g_.walked; ++d) periodic_[k] &= stride[d] == 0;
    needs_position_ |= kind_[k] > kScalar;
    in_rows_ |= kind_[k] == kRow || kind_[k] == kRepeated;
    gathers_ |= kind_[k] == kGathered;
  }

  // Short rows are gathered several at a time.
  bool whole_rows() const { return !in_rows_ && g_.walk_size[0] < kBlock; }

  int64_t length(const Position& position) const {
    const int64_t inner = g_.walk_size[0], row = inner - position.at[0];
    if (whole_rows()) return kBlock / inner * inner - position.at[0];
    return gathers_ ? std::min(row, kBlock) : row;
  }

  void place(Run& run, int k, const Position& position, char* buffer, int64_t n) const {
    const char* data = static_cast<const char*>(call_.data[k]);
    const int64_t size = kElementSize[call_.dtype];
    if (kind_[k] == kRow) run.in[k] = data + position.offset(g_, k) * size;
    if (kind_[k] == kRepeated) run.value[k] = element(data, call_.dtype, position.offset(g_, k));
    if (kind_[k] != kGathered) return;
    run.in[k] = buffer;
    if (size == 8) copy<uint64_t>(k, position, buffer, n);
    if (size == 4) copy<uint32_t>(k, position, buffer, n);
    if (size == 2) copy<uint16_t>(k, position, buffer, n);
  }

  template <class Word> void copy(int k, const Position& position, char* buffer, int64_t n) const {
    gather(g_, k, position, static_cast<const Word*>(call_.data[k]),
           reinterpret_cast<Word*>(buffer), n);
  }

  void block(Run& run, int64_t begin, int64_t n) const {
    const int64_t byte = begin * kElementSize[call_.dtype];
    for (int k = 0; k < call_.inputs; ++k) {
      if (kind_[k] == kDense) run.in[k] = static_cast<const char*>(call_.data[k]) + byte;
    }
    for (int k = 0; k < kMaxOutputs; ++k) run.out[k] = out_[k] ? out_[k] + byte : nullptr;
    run.n = n;
    body_(run);
  }

  const Call& call_;
  const Geometry& g_;
  Body body_;
  char* out_[kMaxOutputs];
  Run run_{};
  Kind kind_[kMaxInputs];
  bool periodic_[kMaxInputs] = {};
  bool needs_position_ = false, in_rows_ = false, gathers_ = false;
};

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
  const int wanted = int(arguments.take<bool>()) | int(arguments.take<bool>()) << 1;
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
