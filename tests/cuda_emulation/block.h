// Runs the blocks of one launch, one after the other; the threads of a block are fibers.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "errors.h"
#include "fiber.h"
#include "schedule.h"
#include "vector_types.h"
#include "warp.h"

inline thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
inline thread_local dim3 blockDim, gridDim;

namespace cuda_emulation {

enum class Barrier { kPlain, kOr, kAnd };

inline const char* name_of(Barrier kind) {
  constexpr const char* names[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and"};
  return names[int(kind)];
}

inline std::string text_of(const uint3& v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

enum class State { kReady, kAtBarrier, kAtWarp, kEnded };

struct Thread {
  uint3 index;
  Fiber* fiber;
  State state;
};

// Counts barriers and blocks; what happened in another epoch is ordered by a barrier or forgotten.
inline thread_local uint64_t epoch = 0;

class Block {
 public:
  // The block that this OS thread runs, or null.
  static Block*& current() {
    static thread_local Block* block = nullptr;
    return block;
  }

  Block(dim3 shape, const std::function<void()>& kernel)
      : kernel_(kernel),
        size_(int(shape.x * shape.y * shape.z)),
        ready_(Schedule::current(), size_) {
    for (unsigned z = 0; z < shape.z; ++z) {
      for (unsigned y = 0; y < shape.y; ++y) {
        for (unsigned x = 0; x < shape.x; ++x) threads_.push_back({{x, y, z}, nullptr, {}});
      }
    }
    for (int at = 0; at < size_; at += kLanes) warps_.emplace_back(std::min(kLanes, size_ - at));
    current() = this;
  }

  ~Block() {
    for (Thread& thread : threads_) {
      if (thread.fiber == nullptr) continue;
      thread.fiber->abandon();
      pool().give(*thread.fiber);
    }
    current() = nullptr;
  }

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run() {
    begin();
    while (ended_ < size_) {
      if (ready_.empty()) throw_error("the block waits forever: " + who_waits());
      step(ready_.take());
    }
  }

  // --- called by the threads ---

  int barrier(Barrier kind, bool vote, Place place) {
    if (arrived_ == 0) meeting_ = {kind, place};
    if (kind != meeting_.kind || place.line != meeting_.place.line) fail_barrier(kind, place);
    votes_for_ += vote;
    threads_[running_].state = State::kAtBarrier;
    if (++arrived_ == size_) release_all();
    threads_[running_].fiber->pause();
    return barrier_result_;
  }

  uint64_t warp_operation(const Operation& operation, uint64_t value, int source) {
    threads_[running_].state = State::kAtWarp;
    Warp& own = warp();
    if (own.arrive(lane(), operation, value, source)) {
      const int start = running_ - lane();
      each_lane(operation.mask, [&](int other) { release(start + other); });
    }
    threads_[running_].fiber->pause();
    return own.result(lane());
  }

  [[noreturn]] void fail(const std::string& what) {
    error_ = "thread " + text_of(threads_[running_].index) + ": " + what;
    threads_[running_].fiber->pause();
    std::abort();
  }

  int running() const { return running_; }
  int lane() const { return running_ % kLanes; }
  Warp& warp() { return warps_[running_ / kLanes]; }
  uint64_t first_epoch() const { return first_epoch_; }
  std::string name(int thread) const { return text_of(threads_[thread].index); }

 private:
  struct Meeting {
    Barrier kind;
    Place place;
  };

  static FiberPool& pool() {
    static thread_local FiberPool pool(&run_thread);
    return pool;
  }

  static void run_thread() {
    Block& block = *current();
    const std::string error = block.run_kernel();
    if (!error.empty()) block.fail(error);
    block.threads_[block.running_].state = State::kEnded;
  }

  // The error is reported after the handler is left, for fail() does not come back.
  std::string run_kernel() const {
    try {
      kernel_();
      return {};
    } catch (const std::exception& error) {
      return std::string("exception: ") + error.what();
    } catch (...) {
      return "an exception that is no std::exception";
    }
  }

  void begin() {
    first_epoch_ = ++epoch;
    ended_ = arrived_ = votes_for_ = 0;
    for (Warp& warp : warps_) warp.begin_block();
    for (Thread& thread : threads_) thread.state = State::kReady;
    ready_.add_all();
  }

  void step(int thread) {
    Thread& next = threads_[running_ = thread];
    if (next.fiber == nullptr) next.fiber = &pool().take();
    threadIdx = next.index;
    next.fiber->enter();
    if (!error_.empty()) throw_error(error_);
    if (next.state != State::kEnded) return;
    pool().give(*next.fiber);
    next.fiber = nullptr;
    warp().end(lane());
    ++ended_;
  }

  void release(int thread) {
    threads_[thread].state = State::kReady;
    ready_.add(thread);
  }

  void release_all() {
    const bool all = votes_for_ == size_, any = votes_for_ > 0;
    barrier_result_ = meeting_.kind == Barrier::kAnd ? all : any;
    arrived_ = votes_for_ = 0;
    ++epoch;
    for (int thread = 0; thread < size_; ++thread) release(thread);
  }

  [[noreturn]] void fail_barrier(Barrier kind, Place place) {
    fail(std::string(name_of(kind)) + " at " + place.text() + " while other threads wait at " +
         barrier_text());
  }

  std::string barrier_text() const {
    return std::string(name_of(meeting_.kind)) + " at " + meeting_.place.text();
  }

  // How many threads are in each state, and the first of them.
  std::string who_waits() const {
    return first_text(State::kAtBarrier) + first_text(State::kAtWarp) + first_text(State::kEnded);
  }

  std::string first_text(State state) const {
    int count = 0, first = 0;
    for (int thread = size_ - 1; thread >= 0; --thread) {
      if (threads_[thread].state == state) ++count, first = thread;
    }
    if (count == 0) return "";
    return std::to_string(count) + " threads, " + name(first) + " the first, " + doing(first) +
           "; ";
  }

  std::string doing(int thread) const {
    const State state = threads_[thread].state;
    if (state == State::kEnded) return "have ended";
    if (state == State::kAtBarrier) return "wait at " + barrier_text();
    return "wait at warp operations, it at " + warps_[thread / kLanes].waits_at(thread % kLanes);
  }

  [[noreturn]] void throw_error(const std::string& what) const {
    throw std::runtime_error("emulated CUDA: block " + text_of(blockIdx) + ", " + what);
  }

  const std::function<void()>& kernel_;
  int size_, running_ = 0, ended_ = 0, arrived_ = 0, votes_for_ = 0, barrier_result_ = 0;
  uint64_t first_epoch_ = 0;
  Meeting meeting_{};
  ReadySet ready_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::string error_;
};

inline void fail(const std::string& what) {
  if (Block* const block = Block::current()) block->fail(what);
  throw std::runtime_error("emulated CUDA, outside of a kernel: " + what);
}

}  // namespace cuda_emulation
