// The threads that share a line, and what they join. `across`: lines lie next to each other, so
// that neighbouring threads belong to neighbouring lines; else to one line. Sizes are powers of
// two. All threads of a block take every step together, also those for which there is no line.
#pragma once

#include "device.cuh"

namespace safeops {
namespace {

constexpr int kWarp = 32, kMostThreads = 1024, kMostAcross = 512;
constexpr unsigned kAllLanes = 0xffffffff;

struct Add {
  static constexpr double none = 0;
  template <class V> SAFEOPS_FN V operator()(V a, V b) const { return a + b; }
};
struct Larger {  // of numbers: a NaN would win or lose by its place
  static constexpr double none = -__builtin_inf();
  template <class V> SAFEOPS_FN V operator()(V a, V b) const { return a > b ? a : b; }
};

template <bool across> struct Team {
  int size, rank;  // threads of a line, and which of them this is
  int lines;       // of a block
  int slot;        // which of them

  explicit SAFEOPS_FN Team(int threads_of_a_line) : size(threads_of_a_line) {
    const int thread = threadIdx.x;
    lines = blockDim.x / size;
    rank = across ? thread / lines : thread % size;
    slot = across ? thread % lines : thread / size;
  }

  // Whether a line's threads are of more than one warp.
  SAFEOPS_FN bool meets_in_memory() const { return across ? size > 1 : size > kWarp; }

  // In an order that only the size fixes; the same bits in every thread.
  template <class Join, class V> SAFEOPS_FN V joined(V v, Join join) {
    if constexpr (!across) {
      const int lanes = size < kWarp ? size : kWarp;
      for (int step = 1; step < lanes; step *= 2) {
        v = join(v, __shfl_xor_sync(kAllLanes, v, step));
      }
    }
    return meets_in_memory() ? joined_in_memory(v, join) : v;
  }

  // In the block, if some of its threads wait for each other, else in the warp.
  SAFEOPS_FN bool any(bool v) const {
    return meets_in_memory() ? __syncthreads_or(v) : __any_sync(kAllLanes, v);
  }

 private:
  // The halves of the room take turns: nobody writes into one before all have read it.
  template <class Join, class V> SAFEOPS_FN V joined_in_memory(V v, Join join) {
    constexpr int places = across ? kMostAcross : kWarp;
    SAFEOPS_SHARED(V, room, 2 * places);
    const int from = turn_ * places;
    turn_ = 1 - turn_;
    if constexpr (across) {
      room[from + threadIdx.x] = v;
      __syncthreads();
      v = room[from + slot];
      for (int r = 1; r < size; ++r) v = join(v, V(room[from + r * lines + slot]));
    } else {
      const int lane = threadIdx.x % kWarp;
      if (lane == 0) room[from + threadIdx.x / kWarp] = v;
      __syncthreads();
      v = lane < size / kWarp ? V(room[from + lane]) : V(Join::none);
      for (int step = 1; step < kWarp; step *= 2) {
        v = join(v, __shfl_xor_sync(kAllLanes, v, step));
      }
    }
    return v;
  }

  int turn_ = 0;
};

}  // namespace
}  // namespace safeops
