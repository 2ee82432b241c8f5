// Broadcasting without a copy: operands as strides over one dense output, walked in memory order.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "kinds.h"

namespace safeops {

constexpr int kMaxDims = 64, kMaxOperands = 5;
using Sizes = std::array<int64_t, kMaxDims>;

// Operands of one op, broadcast together; then the same, coalesced in memory order.
struct Geometry {
  int dims = 0, operands = 0;
  int64_t numel = 1;
  Sizes size;        // broadcast shape, as the user sees it
  Sizes out_stride;  // of the dense output, the layout torch would choose
  int walked = 0;    // dimensions left after coalescing, innermost first
  Sizes walk_size;
  std::array<Sizes, kMaxOperands> stride;  // as the user sees it, then of the walk; in elements
};

inline int64_t broadcast_size(int64_t a, int64_t b) {
  if (a != b && a != 1 && b != 1) {
    throw std::runtime_error("safeops: shapes do not broadcast: sizes " + std::to_string(a) +
                             " and " + std::to_string(b) + " meet in one dimension");
  }
  return a == 1 ? b : a;
}

inline void add_shape(Geometry& g, const torch::stable::Tensor& t) {
  const int dims = int(t.dim()), old = g.dims;
  const int64_t* sizes = t.sizes().data();
  if (dims > old) {
    std::copy_backward(g.size.begin(), g.size.begin() + old, g.size.begin() + dims);
    std::fill(g.size.begin(), g.size.begin() + (dims - old), 1);
    g.dims = dims;
  }
  int64_t* size = g.size.data() + (g.dims - dims);
  for (int d = 0; d < dims; ++d) size[d] = broadcast_size(size[d], sizes[d]);
}

// Strides over the broadcast shape, 0 where the operand is repeated.
inline void add_strides(Geometry& g, const torch::stable::Tensor& t) {
  Sizes& stride = g.stride[g.operands++];
  const int lead = g.dims - int(t.dim());
  const int64_t *sizes = t.sizes().data(), *strides = t.strides().data();
  for (int d = 0; d < g.dims; ++d) {
    const bool repeated = d < lead || (sizes[d - lead] == 1 && g.size[d] != 1);
    stride[d] = repeated ? 0 : strides[d - lead];
  }
}

// > 0 if dimension a lies further out in memory than b, 0 if no operand can tell.
inline int compare(const Geometry& g, int a, int b) {
  for (int k = 0; k < g.operands; ++k) {
    const int64_t sa = g.stride[k][a], sb = g.stride[k][b];
    if (sa == 0 || sb == 0) continue;
    if (sa != sb) return sa < sb ? -1 : 1;
    if (g.size[a] > g.size[b]) return 1;
  }
  return 0;
}

// Dimensions from the innermost out, by the strides of the first operand that can tell: the
// order in which torch lays out the result of an elementwise op.
inline std::array<int, kMaxDims> memory_order(const Geometry& g) {
  std::array<int, kMaxDims> order;
  for (int d = 0; d < g.dims; ++d) order[d] = g.dims - 1 - d;
  for (int i = 1; i < g.dims; ++i) {
    for (int at = i, other = i - 1; other >= 0; --other) {
      const int further = compare(g, order[other], order[at]);
      if (further < 0) break;
      if (further > 0) {
        std::swap(order[other], order[at]);
        at = other;
      }
    }
  }
  return order;
}

inline bool mergeable(const Geometry& g, const std::array<Sizes, kMaxOperands>& stride, int d) {
  for (int k = 0; k < g.operands; ++k) {
    if (stride[k][d] != g.stride[k][g.walked - 1] * g.walk_size[g.walked - 1]) return false;
  }
  return true;
}

inline void coalesce(Geometry& g, const std::array<int, kMaxDims>& order) {
  const std::array<Sizes, kMaxOperands> stride = g.stride;
  for (int i = 0; i < g.dims; ++i) {
    const int d = order[i];
    if (g.size[d] == 1) continue;
    if (g.walked > 0 && mergeable(g, stride, d)) {
      g.walk_size[g.walked - 1] *= g.size[d];
      continue;
    }
    for (int k = 0; k < g.operands; ++k) g.stride[k][g.walked] = stride[k][d];
    g.walk_size[g.walked++] = g.size[d];
  }
  if (g.walked == 0) {
    g.walk_size[g.walked++] = 1;
    for (int k = 0; k < g.operands; ++k) g.stride[k][0] = 0;
  }
}

// The commonest case by far: every operand contiguous and of one shape, or a single number.
inline bool linear(Geometry& g, const torch::stable::Tensor* const* tensors, int count) {
  int64_t total = 1;
  for (int d = g.dims - 1; d >= 0; --d) {
    g.out_stride[d] = total;
    total *= std::max<int64_t>(g.size[d], 1);
  }
  for (int k = 0; k < count; ++k) {
    const torch::stable::Tensor& t = *tensors[k];
    if (t.dim() == 0) continue;
    if (t.dim() != g.dims || !t.is_contiguous()) return false;
    if (!std::equal(g.size.begin(), g.size.begin() + g.dims, t.sizes().data())) return false;
  }
  g.operands = count;
  for (int d = 0; d < g.dims; ++d) g.numel *= g.size[d];
  for (int k = 0; k < count; ++k) g.stride[k][0] = tensors[k]->dim() == 0 ? 0 : 1;
  g.walk_size[g.walked++] = g.numel;
  return true;
}

inline Geometry broadcast(const torch::stable::Tensor* const* tensors, int count) {
  Geometry g;
  for (int k = 0; k < count; ++k) {
    if (tensors[k]->dim() > kMaxDims) {
      throw std::runtime_error("safeops: at most 64 dimensions, got " +
                               std::to_string(tensors[k]->dim()));
    }
  }
  for (int k = 0; k < count; ++k) add_shape(g, *tensors[k]);
  if (linear(g, tensors, count)) return g;
  for (int k = 0; k < count; ++k) add_strides(g, *tensors[k]);
  const auto order = memory_order(g);
  for (int i = 0; i < g.dims; ++i) {
    g.out_stride[order[i]] = g.numel;
    g.numel *= std::max<int64_t>(g.size[order[i]], 1);
  }
  for (int d = 0; d < g.dims; ++d) {
    if (g.size[d] == 0) g.numel = 0;
  }
  if (g.numel > 0) coalesce(g, order);
  return g;
}

// Where one flat output index lies in each walked dimension.
struct Position {
  Sizes at;

  Position(const Geometry& g, int64_t flat) {
    for (int d = 0; d < g.walked; ++d) {
      at[d] = flat % g.walk_size[d];
      flat /= g.walk_size[d];
    }
  }
  // By n elements, to the flat index; a division each dimension only if n passes a row's end.
  void advance(const Geometry& g, int64_t flat, int64_t n) {
    at[0] += n;
    if (at[0] > g.walk_size[0]) *this = Position(g, flat);
    for (int d = 0; d + 1 < g.walked && at[d] == g.walk_size[d]; ++d) {
      at[d] = 0;
      ++at[d + 1];
    }
  }
  int64_t offset(const Geometry& g, int operand) const {
    int64_t sum = 0;
    for (int d = 0; d < g.walked; ++d) sum += at[d] * g.stride[operand][d];
    return sum;
  }
  // Moves to the start of the next row; `row` is the offset of this one's start.
  int64_t next_row(const Geometry& g, int operand, int64_t row) {
    at[0] = 0;
    if (g.walked > 1 && ++at[1] < g.walk_size[1]) return row + g.stride[operand][1];
    for (int d = 1; d < g.walked; ++d) {
      if (at[d] < g.walk_size[d]) break;
      at[d] = 0;
      if (d + 1 < g.walked) ++at[d + 1];
    }
    return offset(g, operand);
  }
};

template <class Word>
void copy_row(const Word* row, int64_t step, Word* to, int64_t count) {
  if (step == 1) {
    std::copy_n(row, count, to);
  } else if (step == 0) {
    std::fill_n(to, count, *row);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = row[i * step];
  }
}

// Copies n elements of an operand, from a position on, into a dense buffer.
template <class Word>
void gather(const Geometry& g, int operand, Position position, const Word* from, Word* to,
            int64_t n) {
  const int64_t step = g.stride[operand][0];
  int64_t row = position.offset(g, operand) - position.at[0] * step;
  while (n > 0) {
    const int64_t count = std::min(n, g.walk_size[0] - position.at[0]);
    copy_row(from + row + position.at[0] * step, step, to, count);
    to += count;
    n -= count;
    row = position.next_row(g, operand, row);
  }
}

}  // namespace safeops
