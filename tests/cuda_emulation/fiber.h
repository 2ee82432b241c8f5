// A GPU thread's own stack and registers. The scheduler enters a fiber, and the fiber pauses back.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#if defined(__USE_FORTIFY_LEVEL) && __USE_FORTIFY_LEVEL > 0
#error "compile with -U_FORTIFY_SOURCE: the fortified longjmp does not go to another stack"
#endif

namespace cuda_emulation {

// The lowest page is a guard; kernel parameters alone may take 32 KiB of the rest.
class Stack {
 public:
  Stack() : memory_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory_, kGuard, PROT_NONE);
  }
  ~Stack() { munmap(memory_, kBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // Without the unused end all stacks would compete for the same few lines of the caches.
  stack_t area(int number) const {
    stack_t area{};
    area.ss_sp = memory_;
    area.ss_size = kBytes - (number % 32) * 128;
    return area;
  }

 private:
  static constexpr size_t kGuard = 4096, kBytes = (128 << 10) + kGuard;
  static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory_;
};

// Runs `work` again and again, with a pause after each. The first entry is a slow setcontext, the
// others two jumps without a system call.
class Fiber {
 public:
  Fiber(int number, void (*work)()) : number_(number), work_(work) {}

  __attribute__((noinline)) void enter() {
    if (_setjmp(scheduler_) != 0) return;
    if (started_) _longjmp(here_, 1);
    start();
  }

  __attribute__((noinline)) void pause() {
    if (_setjmp(here_) == 0) _longjmp(scheduler_, 1);
  }

  // Forgets work that is half done: the next entry begins anew.
  void abandon() { started_ = false; }

 private:
  static Fiber*& starting() {
    static thread_local Fiber* fiber = nullptr;
    return fiber;
  }

  static void main() {
    Fiber* const self = starting();
    for (;;) {
      self->work_();
      self->pause();
    }
  }

  [[noreturn]] void start() {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = stack_.area(number_);
    context.uc_link = nullptr;
    makecontext(&context, &Fiber::main, 0);
    starting() = this;
    started_ = true;
    setcontext(&context);
    std::abort();
  }

  jmp_buf scheduler_, here_;
  Stack stack_;
  int number_;
  bool started_ = false;
  void (*work_)();
};

// The last fiber that came back is taken first: its stack is in the cache, and threads that never
// wait share a single one.
class FiberPool {
 public:
  explicit FiberPool(void (*work)()) : work_(work) {}

  Fiber& take() {
    if (free_.empty()) free_.push_back(add());
    Fiber* const fiber = free_.back();
    free_.pop_back();
    return *fiber;
  }

  void give(Fiber& fiber) { free_.push_back(&fiber); }

 private:
  Fiber* add() {
    all_.push_back(std::make_unique<Fiber>(int(all_.size()), work_));
    return all_.back().get();
  }

  void (*work_)();
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_;
};

}  // namespace cuda_emulation
