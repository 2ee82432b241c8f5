// Row ops on a GPU: how a call's lines are shared out, and registration.

#include "rows.cuh"

#include "../row_ops.h"
#include "launch.cuh"

namespace safeops {
namespace {

constexpr int kBlock = 128, kBlockAcross = 256, kColumns = 32;  // threads, and lines side by side
constexpr int kMostRanks = kMostAcross / kColumns;
constexpr int kChunkThreads = 256;

// A part of a call: lines that fit into one launch.
struct Part {
  const RowCall& call;
  char* data[kMaxOperands];
  int64_t lines, outermost;  // size of the last kept dimension, which parts share
  int kept_dims;
};

// Operands come in the order in which they were added; in Lines each has its place.
int place_of(const RowCall& call, int k) {
  return k == call.mask ? kMaskOperand : k == call.out ? kOutOperand : k;
}

int64_t power_of_two(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// --- how lines lie ---

bool lies_across(const RowCall& call) {
  if (call.reduced.numel <= 1 || call.kept.walk_size[0] < 8 || call.kept.stride[0][0] != 1) {
    return false;
  }
  return call.reduced.walked > 1 || call.reduced.stride[0][0] != 1;
}

// Vectors along a line: operands that have whole lines must lie so.
bool takes_vectors(const Part& part, int width) {
  const RowCall& call = part.call;
  bool fits = call.reduced.walked == 1 && call.reduced.numel % width == 0;
  for (int k = 0; k < call.operands; ++k) {
    if (k == call.mask || !call.whole[k]) continue;
    fits &= call.reduced.stride[k][0] == 1;
    fits &= reinterpret_cast<uintptr_t>(part.data[k]) % kVectorBytes == 0;
    for (int d = 0; d < part.kept_dims; ++d) fits &= call.kept.stride[k][d] % width == 0;
  }
  return fits;
}

void add_places(const RowCall& call, const Geometry& g, int dims, Places<kRowOperands>* places) {
  check_walked(dims);
  for (int d = 0; d < dims; ++d) {
    places->add(g.walk_size[d], d + 1 == dims);
    for (int k = 0; k < kRowOperands; ++k) places->stride[k][d] = 0;
    for (int k = 0; k < call.operands; ++k) {
      places->stride[place_of(call, k)][d] = g.stride[k][d];
    }
  }
}

Lines packed(const Part& part) {
  const RowCall& call = part.call;
  Lines l{};
  add_places(call, call.kept, part.kept_dims, &l.kept);
  if (call.reduced.numel > 0) add_places(call, call.reduced, call.reduced.walked, &l.reduced);
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && k != call.out) l.in[k] = part.data[k];
  }
  if (call.mask >= 0) l.mask = reinterpret_cast<const uint8_t*>(part.data[call.mask]);
  l.out = part.data[call.out];
  l.lines = uint32_t(part.lines);
  l.n = call.reduced.numel;
  l.inner = l.n == 0 ? 0 : call.reduced.walk_size[0];
  return l;
}

// --- launches ---

template <class Kind>
void launch_whole(const OnDevice& device, Lines l, int64_t ranks, int64_t columns) {
  l.threads = int(ranks);
  launch(device, blocks_for(l.lines, columns), int(ranks * columns), whole_lines<Kind>, l);
}

// Held elements do not matter where only what is known of chunks is joined: one kind for all.
template <class Kind>
void launch_chunks(const OnDevice& device, Lines l, int ranks, int columns, const Tensor& home) {
  using Settling =
      RowKind<Kind::op, Kind::backward, typename Kind::M, 1, false, kHeld<typename Kind::M>>;
  l.threads = ranks;
  l.chunk = int64_t(ranks) * Kind::held;
  l.run_chunks = uint32_t(blocks_for(l.inner, l.chunk));
  check_pieces(l.n / l.inner * l.run_chunks);
  l.chunks = uint32_t(l.n / l.inner * l.run_chunks);
  constexpr int64_t doubles = sizeof(LineState) / sizeof(double);
  const int64_t size = l.lines * (int64_t(l.chunks) + 1) * doubles, one = 1;
  const Tensor states = empty(1, &size, &one, size, kDouble, home);
  l.states = static_cast<LineState*>(states.mutable_data_ptr());
  const int64_t blocks = blocks_for(l.lines, columns) * l.chunks;
  launch(device, blocks, ranks * columns, measure_chunks<Kind>, l);
  Lines settled = l;
  settled.threads =
      int(std::min<int64_t>(kMostThreads, std::max<int64_t>(kWarp, power_of_two(l.chunks))));
  launch(device, l.lines, settled.threads, settle_lines<Settling>, settled);
  if (Kind::op == kLogSumExp && !Kind::backward) return;
  launch(device, blocks, ranks * columns, finish_chunks<Kind>, l);
}

// Threads of a line that lies along memory: a vector each while a warp is enough, then as
// many elements as it holds.
int64_t ranks_along(int64_t n, int width, int held) {
  if (n <= kWarp * held) return std::min<int64_t>(kWarp, power_of_two(blocks_for(n, width)));
  return std::min<int64_t>(kMostThreads, power_of_two(blocks_for(n, held)));
}

// Runs may be short, where several dimensions are reduced.
int chunk_ranks(int64_t inner, int held) {
  const int64_t ranks = power_of_two(blocks_for(inner, held));
  return int(std::min<int64_t>(kChunkThreads, std::max<int64_t>(kWarp, ranks)));
}

template <RowOp op, bool backward, class M, int width>
void launch_along(const OnDevice& device, const Lines& l, const Tensor& home) {
  constexpr bool long_lines = !backward && sizeof(typename M::F) == 4 && width > 1;
  using Kind = RowKind<op, backward, M, width, false, kHeld<M>>;
  const bool one_run = l.n == l.inner;
  if (one_run && l.n <= kMostThreads * kHeld<M>) {
    const int64_t ranks = ranks_along(l.n, width, kHeld<M>);
    return launch_whole<Kind>(device, l, ranks, ranks > kWarp ? 1 : kBlock / ranks);
  }
  if constexpr (long_lines) {
    using Long = RowKind<op, backward, M, width, false, kHeldLong<M>>;
    if (one_run && l.n <= kMostThreads * kHeldLong<M>)
      return launch_whole<Long>(device, l, kMostThreads, 1);
  }
  launch_chunks<Kind>(device, l, chunk_ranks(l.inner, kHeld<M>), 1, home);
}

template <RowOp op, bool backward, class M>
void launch_across(const OnDevice& device, const Lines& l, const Tensor& home) {
  using Kind = RowKind<op, backward, M, 1, true, kHeld<M>>;
  const int64_t ranks = std::min<int64_t>(kMostRanks, power_of_two(blocks_for(l.n, kHeld<M>)));
  const int64_t columns = std::max<int64_t>(kColumns, kBlockAcross / ranks);
  if (l.n == l.inner && l.n <= kMostRanks * kHeld<M>)
    return launch_whole<Kind>(device, l, ranks, columns);
  launch_chunks<Kind>(device, l, kMostRanks, kColumns, home);
}

template <RowOp op, bool backward, Dtype dtype>
void launch_part(const OnDevice& device, const Part& part) {
  using M = memory<dtype>;
  const Lines l = packed(part);
  const Tensor& home = part.call.home;
  if (lies_across(part.call)) return launch_across<op, backward, M>(device, l, home);
  if (takes_vectors(part, kVector<M>)) {
    return launch_along<op, backward, M, kVector<M>>(device, l, home);
  }
  launch_along<op, backward, M, 1>(device, l, home);
}

using Launch = void (*)(const OnDevice&, const Part&);

#define SAFEOPS_ROW_DTYPES(op, backward)                                  \
  {launch_part<op, backward, kDouble>, launch_part<op, backward, kFloat>, \
   launch_part<op, backward, kHalf>, launch_part<op, backward, kBFloat16>}

const Launch kLaunches[kRowOps][2][kDtypes] = {
    {SAFEOPS_ROW_DTYPES(kSoftmax, false), SAFEOPS_ROW_DTYPES(kSoftmax, true)},
    {SAFEOPS_ROW_DTYPES(kLogSoftmax, false), SAFEOPS_ROW_DTYPES(kLogSoftmax, true)},
    {SAFEOPS_ROW_DTYPES(kLogSumExp, false), SAFEOPS_ROW_DTYPES(kLogSumExp, true)}};

// In halves of the outermost kept dimension, until an index fits in 32 bits.
void launch_parts(const OnDevice& device, Part part) {
  const RowCall& call = part.call;
  while (part.kept_dims > 1 && part.outermost == 1) {
    part.outermost = call.kept.walk_size[--part.kept_dims - 1];
  }
  if (part.lines == 1 || part.lines * std::max<int64_t>(1, call.reduced.numel) <= kMostElements) {
    return kLaunches[call.op][call.backward][call.dtype](device, part);
  }
  const int64_t inner = part.lines / part.outermost, half = part.outermost / 2;
  Part low = part, high = part;
  low.outermost = half;
  low.lines = half * inner;
  high.outermost = part.outermost - half;
  high.lines = part.lines - low.lines;
  for (int k = 0; k < call.operands; ++k) {
    high.data[k] += half * call.kept.stride[k][part.kept_dims - 1] * call.size[k];
  }
  launch_parts(device, low);
  launch_parts(device, high);
}

struct Cuda {
  static void walk(const RowCall& call) {
    const OnDevice device(call.home.get_device_index());
    const int dims = call.kept.walked;
    Part part{call, {}, call.kept.numel, call.kept.walk_size[dims - 1], dims};
    std::copy_n(call.data, call.operands, part.data);
    launch_parts(device, part);
  }
};

}  // namespace
}  // namespace safeops

SAFEOPS_CUDA_LIBRARY(m) { safeops::register_rows<safeops::Cuda>(m); }
