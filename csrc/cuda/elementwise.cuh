// Elementwise ops: a thread takes a few vectors, or single elements where operands do not lie so.
#pragma once

#include "places.cuh"

namespace safeops {

constexpr int kThreads = 256;
template <int width> constexpr int kUnroll = width == 8 ? 1 : 2;  // as many as registers are for

// One call, or a part of one with less than 2**31 elements. Results lie one after the other.
template <int inputs> struct Elementwise {
  Places<inputs> places;
  const void* in[inputs];
  void* out[kMaxOutputs];
  bool single[inputs];  // one value for all: there, in a dtype of its own, or here if nowhere
  Dtype own[inputs];
  double value[inputs];
  double constants[kConstants];
  uint32_t n;
};

namespace {

#include "../ops.inc"

template <class M, template <class> class Op> struct Value {
  using F = typename M::F;
  template <int inputs> static SAFEOPS_FN void apply(const Op<F>& op, const F (&in)[inputs],
                                                     F (&out)[kMaxOutputs]) {
    if constexpr (inputs == 1) out[0] = op(in[0]);
    if constexpr (inputs == 2) out[0] = op(in[0], in[1]);
  }
};

// Inputs are the upstream gradient and what was saved; `wanted` has bit k for input k's gradient.
template <class M, template <class> class Op, int wanted> struct Gradient {
  using F = typename M::F;
  template <int inputs> static SAFEOPS_FN void apply(const Op<F>& op, const F (&in)[inputs],
                                                     F (&out)[kMaxOutputs]) {
    if constexpr (inputs == 2) out[0] = op(in[0], in[1]);
    if constexpr (inputs == 3) {
      op.template operator()<wanted>(in[0], in[1], in[2], &out[0], &out[1]);
    }
  }
};

// The operands of `width` elements from the i-th on, of which `count` are there.
template <class M, int inputs, int width>
SAFEOPS_FN void read(const Elementwise<inputs>& call, const typename M::F (&value)[inputs],
                     uint32_t i, int count, typename M::F (&in)[inputs][width]) {
  int64_t at[inputs];
  call.places.find(i, at);
  for (int k = 0; k < inputs; ++k) {
    const auto* p = static_cast<const typename M::Word*>(call.in[k]) + at[k];
    if (call.single[k]) {
      for (int j = 0; j < width; ++j) in[k][j] = value[k];
    } else if (width > 1 && call.places.stride[k][0] == 0) {
      const auto same = M::widen(*p);
      for (int j = 0; j < width; ++j) in[k][j] = same;
    } else if (count == width) {
      load<M, width>(p, in[k]);
    } else {
      for (int j = 0; j < width; ++j) in[k][j] = j < count ? M::widen(p[j]) : typename M::F(0);
    }
  }
}

template <class M, int width>
SAFEOPS_FN void write(void* out, uint32_t i, int count, const typename M::F (&v)[width]) {
  auto* p = static_cast<typename M::Word*>(out) + i;
  if (count == width) return store<M, width>(p, v);
  for (int j = 0; j < width; ++j) {
    if (j < count) p[j] = M::narrow(v[j]);
  }
}

template <class Kind, class M, template <class> class Op, int inputs, int width>
SAFEOPS_FN void treat(const Elementwise<inputs>& call, const Op<typename M::F>& op, uint32_t i,
                      int count, const typename M::F (&in)[inputs][width]) {
  typename M::F out[kMaxOutputs][width];
  for (int j = 0; j < width; ++j) {
    typename M::F one[inputs], results[kMaxOutputs];
    for (int k = 0; k < inputs; ++k) one[k] = in[k][j];
    Kind::apply(op, one, results);
    for (int k = 0; k < kMaxOutputs; ++k) out[k][j] = results[k];
  }
  for (int k = 0; k < kMaxOutputs; ++k) {
    if (call.out[k]) write<M, width>(call.out[k], i, count, out[k]);
  }
}

template <class Kind, class M, template <class> class Op, int inputs, int width>
__global__ void __launch_bounds__(kThreads) elementwise(const Elementwise<inputs> call) {
  using F = typename M::F;
  const double* c = call.constants;
  const Op<F> op{F(c[0]), F(c[1]), F(c[2]), F(M::max)};
  F value[inputs];
  for (int k = 0; k < inputs; ++k) {
    value[k] = !call.single[k] ? F(0)
               : call.in[k]    ? element<F>(call.in[k], call.own[k])
                               : F(call.value[k]);
  }
  const uint32_t first = blockIdx.x * (kThreads * width * kUnroll<width>)+threadIdx.x * width;
  F in[kUnroll<width>][inputs][width];
  int count[kUnroll<width>];
#pragma unroll
  for (int u = 0; u < kUnroll<width>; ++u) {
    const uint32_t i = first + u * kThreads * width;
    count[u] = i >= call.n ? 0 : call.n - i < width ? int(call.n - i) : width;
    if (count[u] > 0) read<M, inputs, width>(call, value, i, count[u], in[u]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll<width>; ++u) {
    const uint32_t i = first + u * kThreads * width;
    if (count[u] > 0) treat<Kind, M, Op, inputs, width>(call, op, i, count[u], in[u]);
  }
}

}  // namespace
}  // namespace safeops
