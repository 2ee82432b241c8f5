// In place of NVIDIA's header: compiles CUDA sources as plain C++ and runs their kernels on the
// CPU, with the errors that a GPU would only make now and then. Kernels start by
// cudaLaunchKernelEx.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <memory>  // before __noinline__, which is the name of an attribute there
#include <type_traits>

#include "launch.h"
#include "shared_array.h"
#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local

namespace cuda_emulation {

inline Block& running_block() {
  if (Block::current() == nullptr) fail("a call that only kernels may make");
  return *Block::current();
}

template <class T> T warp_shuffle(Kind kind, unsigned mask, T value, int source, Place place) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "not for this type");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = running_block().warp_operation({kind, mask, int(sizeof value), place}, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned warp_vote(Kind kind, unsigned mask, int predicate, Place place) {
  return unsigned(running_block().warp_operation({kind, mask, 0, place}, predicate != 0, 0));
}

inline void check_width(int width) {
  if (width != kLanes) fail("shuffles are emulated for a width of 32 only");
}

}  // namespace cuda_emulation

#define SAFEOPS_HERE cuda_emulation::Place place = cuda_emulation::Place::here()

inline void __syncthreads(SAFEOPS_HERE) {
  cuda_emulation::running_block().barrier(cuda_emulation::Barrier::kPlain, false, place);
}
inline int __syncthreads_or(int predicate, SAFEOPS_HERE) {
  using cuda_emulation::Barrier;
  return cuda_emulation::running_block().barrier(Barrier::kOr, predicate != 0, place);
}
inline int __syncthreads_and(int predicate, SAFEOPS_HERE) {
  using cuda_emulation::Barrier;
  return cuda_emulation::running_block().barrier(Barrier::kAnd, predicate != 0, place);
}

inline void __syncwarp(unsigned mask = 0xffffffff, SAFEOPS_HERE) {
  cuda_emulation::warp_vote(cuda_emulation::Kind::kSync, mask, 0, place);
}
inline int __any_sync(unsigned mask, int predicate, SAFEOPS_HERE) {
  return cuda_emulation::warp_vote(cuda_emulation::Kind::kAny, mask, predicate, place);
}
inline int __all_sync(unsigned mask, int predicate, SAFEOPS_HERE) {
  return cuda_emulation::warp_vote(cuda_emulation::Kind::kAll, mask, predicate, place);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, SAFEOPS_HERE) {
  return cuda_emulation::warp_vote(cuda_emulation::Kind::kBallot, mask, predicate, place);
}

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SAFEOPS_HERE) {
  cuda_emulation::check_width(width);
  using cuda_emulation::Kind;
  return cuda_emulation::warp_shuffle(Kind::kShuffle, mask, value, lane & 31, place);
}

// A lane that would read beyond the warp gets its own value.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SAFEOPS_HERE) {
  cuda_emulation::check_width(width);
  using cuda_emulation::Kind;
  const int own = cuda_emulation::running_block().lane();
  const int source = unsigned(own ^ lanes) < 32 ? own ^ lanes : own;
  return cuda_emulation::warp_shuffle(Kind::kShuffleXor, mask, value, source, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32, SAFEOPS_HERE) {
  cuda_emulation::check_width(width);
  using cuda_emulation::Kind;
  const int own = cuda_emulation::running_block().lane();
  const int source = lanes < 32u - own ? own + int(lanes) : own;
  return cuda_emulation::warp_shuffle(Kind::kShuffleDown, mask, value, source, place);
}

#undef SAFEOPS_HERE

template <class T> T __ldg(const T* address) { return *address; }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
