// Elementwise ops on a GPU: which of two kernels a call takes, and registration.

#include "elementwise.cuh"

#include "../elementwise_call.h"
#include "../levels.h"
#include "launch.cuh"

namespace safeops {
namespace {

// A part of a call: what the kernels of every dtype and number of inputs are launched with.
struct Part {
  const Call& call;
  const Geometry& g;
  const double* constants;
  const char* in[kMaxInputs];
  char* out[kMaxOutputs];
  int64_t n, outermost;  // elements, and the size of the last walked dimension, which parts share
  int walked;

  bool is_single(int k) const { return call.tensor[k]->dim() == 0; }
  int64_t size() const { return kElementSize[call.dtype]; }
};

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0; }

// Vectors never cross the end of a row, and each operand lies in whole ones or repeats an element.
bool takes_vectors(const Part& part, int width) {
  const Geometry& g = part.g;
  bool fits = part.walked == 1 || g.walk_size[0] % width == 0;
  for (int k = 0; k < part.call.inputs; ++k) {
    if (part.is_single(k) || g.stride[k][0] == 0) continue;
    fits &= g.stride[k][0] == 1 && is_aligned(part.in[k]);
    for (int d = 1; d < part.walked; ++d) fits &= g.stride[k][d] % width == 0;
  }
  for (const char* out : part.out) fits &= is_aligned(out);
  return fits;
}

template <int inputs> Elementwise<inputs> packed(const Part& part) {
  Elementwise<inputs> packed{};
  const Geometry& g = part.g;
  check_walked(part.walked);
  for (int d = 0; d < part.walked; ++d) {
    packed.places.add(g.walk_size[d], d + 1 == part.walked);
    for (int k = 0; k < inputs; ++k) packed.places.stride[k][d] = g.stride[k][d];
  }
  for (int k = 0; k < inputs; ++k) {
    const bool here = part.call.tensor[k]->is_cpu() && part.is_single(k);
    packed.in[k] = here ? nullptr : part.in[k];
    packed.single[k] = part.is_single(k);
    packed.own[k] = part.call.own[k];
    packed.value[k] = here ? element(part.call.data[k], part.call.own[k], 0) : 0;
  }
  for (int k = 0; k < kMaxOutputs; ++k) packed.out[k] = part.out[k];
  for (int k = 0; k < kConstants; ++k) packed.constants[k] = part.constants[k];
  packed.n = uint32_t(part.n);
  return packed;
}

using Launch = void (*)(const OnDevice&, const Part&);

template <class Kind, class M, template <class> class Op, int inputs, int width>
void launch_width(const OnDevice& device, const Part& part) {
  const int64_t blocks = blocks_for(part.n, kThreads * width * kUnroll<width>);
  launch(device, blocks, kThreads, elementwise<Kind, M, Op, inputs, width>, packed<inputs>(part));
}

template <class Kind, class M, template <class> class Op, int inputs>
void launch_kind(const OnDevice& device, const Part& part) {
  if (takes_vectors(part, kVector<M>)) {
    launch_width<Kind, M, Op, inputs, kVector<M>>(device, part);
  } else {
    launch_width<Kind, M, Op, inputs, 1>(device, part);
  }
}

template <Dtype dtype, int inputs, template <class> class Op>
constexpr Launch value_launch = launch_kind<Value<memory<dtype>, Op>, memory<dtype>, Op, inputs>;

template <Dtype dtype, int inputs, template <class> class Op, int wanted>
constexpr Launch gradient_launch =
    launch_kind<Gradient<memory<dtype>, Op, (inputs == 1 ? 1 : wanted)>, memory<dtype>, Op,
                inputs + 1>;

#define SAFEOPS_DTYPES(name, ...)                                                   \
  {name<kDouble, __VA_ARGS__>, name<kFloat, __VA_ARGS__>, name<kHalf, __VA_ARGS__>, \
   name<kBFloat16, __VA_ARGS__>}

// In the order of ops.inc: the value, then the gradients by the set that is wanted.
const Launch kLaunches[][4][kDtypes] = {
#define OP(name, inputs, constants)                             \
  {SAFEOPS_DTYPES(value_launch, inputs, name##_value),          \
   SAFEOPS_DTYPES(gradient_launch, inputs, name##_gradient, 1), \
   SAFEOPS_DTYPES(gradient_launch, inputs, name##_gradient, 2), \
   SAFEOPS_DTYPES(gradient_launch, inputs, name##_gradient, 3)},
#include "../ops.inc"
};

void check_devices(const Call& call) {
  const int32_t index = call.tensor[call.home]->get_device_index();
  for (int k = 0; k < call.inputs; ++k) {
    const Tensor& t = *call.tensor[k];
    STD_TORCH_CHECK(t.is_cpu() == call.tensor[call.home]->is_cpu() ? t.get_device_index() == index
                                                                   : t.dim() == 0,
                    "safeops: expected all tensors on one device");
  }
}

// In halves of the outermost dimension, until an index fits in 32 bits.
void launch_parts(const OnDevice& device, Part part, Launch launch) {
  const Geometry& g = part.g;
  while (part.walked > 1 && part.outermost == 1) {
    part.outermost = g.walk_size[--part.walked - 1];
  }
  if (part.n <= kMostElements) return launch(device, part);
  const int64_t inner = part.n / part.outermost, half = part.outermost / 2;
  Part low = part, high = part;
  low.outermost = half;
  low.n = half * inner;
  high.outermost = part.outermost - half;
  high.n = part.n - low.n;
  for (int k = 0; k < part.call.inputs; ++k) {
    const int64_t stride = part.is_single(k) ? 0 : g.stride[k][part.walked - 1];
    high.in[k] += half * stride * part.size();
  }
  for (char*& out : high.out) out += out ? low.n * part.size() : 0;
  launch_parts(device, low, launch);
  launch_parts(device, high, launch);
}

struct Cuda {
  static void run(const Call& call, const Geometry& g, void* const* out, const double* constants,
                  ElementwiseOp op, int wanted) {
    check_devices(call);
    const OnDevice device(call.tensor[call.home]->get_device_index());
    Part part{call, g, constants, {}, {}, g.numel, g.walk_size[g.walked - 1], g.walked};
    for (int k = 0; k < call.inputs; ++k) part.in[k] = static_cast<const char*>(call.data[k]);
    for (int k = 0; k < kMaxOutputs; ++k) part.out[k] = static_cast<char*>(out[k]);
    launch_parts(device, part, kLaunches[op][wanted][call.dtype]);
  }
};

}  // namespace

#ifdef __CUDA_ARCH_LIST__
int oldest_gpu() {
  constexpr int built[] = {__CUDA_ARCH_LIST__};
  return *std::min_element(std::begin(built), std::end(built)) / 10;
}
#endif

}  // namespace safeops

SAFEOPS_CUDA_LIBRARY(m) {
#define OP(name, inputs, constants)                                          \
  m.impl(#name, &safeops::value<safeops::Cuda, safeops::op_##name, inputs>); \
  m.impl(#name "_backward", &safeops::gradient<safeops::Cuda, safeops::op_##name, inputs>);
#include "../ops.inc"
}
