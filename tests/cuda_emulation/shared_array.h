// Shared memory that is watched: races, elements never written, indices out of range are errors.
//
// A happens-before check (FastTrack, PLDI 2009): accesses are ordered by the program, by barriers
// (each begins an epoch) and, inside a warp, by warp operations (clocks). What is not ordered is a
// race, even if this schedule ran it in the order that was meant.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "block.h"

namespace cuda_emulation {

struct Access {
  uint64_t epoch;
  int thread;
  uint32_t clock;

  static Access of(Block& block) {
    return {cuda_emulation::epoch, block.running(), block.warp().clock(block.lane())};
  }

  // Whether it happened before all that the running thread does now.
  bool ordered(Block& block) const {
    if (epoch < cuda_emulation::epoch || thread == block.running()) return true;
    const bool same_warp = thread / kLanes == block.running() / kLanes;
    return same_warp && clock <= block.warp().seen(block.lane(), thread % kLanes);
  }
};

// The reads of an element since the last barrier: of one warp lane by lane, of others just one.
class Reads {
 public:
  void add(const Access& read) {
    if (first_.epoch != read.epoch) *this = {}, first_ = other_ = read;
    if (read.thread / kLanes == first_.thread / kLanes) {
      clocks_[read.thread % kLanes] = read.clock;
    } else {
      other_ = read;
    }
  }

  void forget() { first_.epoch = 0; }

  // A thread whose read is not ordered before what the running thread does now, or -1.
  int unordered(Block& block) const {
    if (first_.epoch != cuda_emulation::epoch) return -1;
    if (!other_.ordered(block)) return other_.thread;
    for (int lane = 0; lane < kLanes; ++lane) {
      const int thread = first_.thread / kLanes * kLanes + lane;
      const Access read{first_.epoch, thread, clocks_[lane]};
      if (clocks_[lane] != 0 && !read.ordered(block)) return thread;
    }
    return -1;
  }

 private:
  Access first_{}, other_{};
  uint32_t clocks_[kLanes] = {};
};

// What happened to one element.
class History {
 public:
  void read(Block& block, const char* name, int64_t i) {
    if (write_.epoch < block.first_epoch())
      fail(text(name, i) + " is read before this block wrote it");
    if (!write_.ordered(block)) fail_race("reads", name, i, "wrote", block.name(write_.thread));
    reads_.add(Access::of(block));
  }

  void write(Block& block, const char* name, int64_t i) {
    const bool written = write_.epoch >= block.first_epoch();
    if (written && !write_.ordered(block)) {
      fail_race("writes", name, i, "wrote", block.name(write_.thread));
    }
    const int reader = reads_.unordered(block);
    if (reader >= 0) fail_race("writes", name, i, "read", block.name(reader));
    write_ = Access::of(block);
    reads_.forget();
  }

  static std::string text(const char* name, int64_t i) {
    return "shared " + std::string(name) + "[" + std::to_string(i) + "]";
  }

 private:
  [[noreturn]] static void fail_race(const char* does, const char* name, int64_t i, const char* did,
                                     const std::string& other) {
    fail(std::string("race: ") + does + " " + text(name, i) + ", which thread " + other + " " +
         did + ", without a barrier between");
  }

  Access write_{};
  Reads reads_;
};

template <class T, int n> struct Watched {
  T values[n];
  History histories[n];
};

// What SAFEOPS_SHARED declares: an array under its name in the kernel.
template <class T, int n> class SharedArray {
 public:
  // An element of it, to be read or written at once: `auto x = array[i]` is not a copy, so its use
  // does not compile.
  class Element {
   public:
    Element(const SharedArray& array, int64_t i) : array_(array), i_(i) {}
    operator T() && { return array_.read(i_); }
    void operator=(const T& value) && { array_.write(i_, value); }
    void operator=(Element&& other) && { array_.write(i_, T(std::move(other))); }

   private:
    const SharedArray& array_;
    int64_t i_;
  };

  SharedArray(Watched<T, n>& watched, const char* name) : watched_(watched), name_(name) {}

  Element operator[](int64_t i) const {
    if (i < 0 || i >= n) {
      fail(History::text(name_, i) + " of an array of " + std::to_string(n) + " elements");
    }
    return {*this, i};
  }

 private:
  T read(int64_t i) const {
    watched_.histories[i].read(*Block::current(), name_, i);
    return watched_.values[i];
  }

  void write(int64_t i, const T& value) const {
    watched_.histories[i].write(*Block::current(), name_, i);
    watched_.values[i] = value;
  }

  Watched<T, n>& watched_;
  const char* name_;
};

}  // namespace cuda_emulation

#define SAFEOPS_SHARED(T, name, n)                                         \
  static thread_local ::cuda_emulation::Watched<T, int(n)> name##_watched; \
  [[maybe_unused]] const ::cuda_emulation::SharedArray<T, int(n)> name(name##_watched, #name)
