// The order in which blocks run, and the threads of a block: SAFEOPS_CUDA_SCHEDULE is
//   forward        the lowest thread that can go on (the default)
//   reverse        the highest one
//   shuffled:SEED  any one, drawn at each switch
#pragma once

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>

namespace cuda_emulation {

constexpr int kMaxThreads = 1024;

class Schedule {
 public:
  enum Kind { kForward, kReverse, kShuffled };

  // Of this OS thread: each draws its own numbers.
  static Schedule& current() {
    static thread_local Schedule schedule;
    return schedule;
  }

  Kind kind() const { return kind_; }

  uint64_t below(uint64_t bound) { return random() % bound; }

 private:
  Schedule() {
    const char* const asked = std::getenv("SAFEOPS_CUDA_SCHEDULE");
    const std::string text = asked && *asked ? asked : "forward";
    if (text == "forward") return;
    if (text == "reverse") {
      kind_ = kReverse;
    } else {
      kind_ = kShuffled;
      state_ = seed_of(text);
    }
  }

  static uint64_t seed_of(const std::string& text) {
    const std::string start = "shuffled:", digits = "0123456789";
    const size_t size = text.size() - start.size();
    const bool right = text.compare(0, start.size(), start) == 0 && size > 0 && size < 19 &&
                       text.find_first_not_of(digits, start.size()) == std::string::npos;
    if (right) return std::stoull(text.substr(start.size()));
    throw std::runtime_error(
        "SAFEOPS_CUDA_SCHEDULE must be forward, reverse or shuffled:SEED; it is '" + text + "'");
  }

  // splitmix64
  uint64_t random() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  Kind kind_ = kForward;
  uint64_t state_ = 0;
};

// Visits 0 ... count - 1 in the schedule's order: first, first + step, ... modulo count.
class BlockOrder {
 public:
  BlockOrder(Schedule& schedule, uint64_t count) : count_(count) {
    if (schedule.kind() == Schedule::kReverse) at_ = step_ = count - 1;
    if (schedule.kind() != Schedule::kShuffled) return;
    at_ = schedule.below(count);
    do step_ = 1 + schedule.below(count);
    while (std::gcd(step_, count) != 1);
  }

  uint64_t next() {
    const uint64_t block = at_;
    at_ = (at_ + step_) % count_;
    return block;
  }

 private:
  uint64_t count_, at_ = 0, step_ = 1;
};

// The threads of a block that can go on.
class ReadySet {
 public:
  ReadySet(Schedule& schedule, int threads)
      : schedule_(schedule), reversed_(schedule.kind() == Schedule::kReverse), threads_(threads) {}

  bool empty() const { return count_ == 0; }

  void add_all() {
    for (int thread = 0; thread < threads_; ++thread) add(thread);
  }

  void add(int thread) {
    const int at = place(thread);
    words_[at / 64] |= uint64_t(1) << at % 64;
    ++count_;
  }

  int take() {
    const bool draws = schedule_.kind() == Schedule::kShuffled;
    const int thread = place(remove(draws ? int(schedule_.below(count_)) : 0));
    --count_;
    return thread;
  }

 private:
  int place(int thread) const { return reversed_ ? threads_ - 1 - thread : thread; }

  // The place of the member that has so many others before it.
  int remove(int before) {
    uint64_t* word = words_;
    const auto members = [&] { return before == 0 ? *word != 0 : __builtin_popcountll(*word); };
    for (; before >= members(); ++word) before -= members();
    uint64_t rest = *word;
    for (; before > 0; --before) rest &= rest - 1;
    *word &= ~(rest & -rest);
    return int(word - words_) * 64 + __builtin_ctzll(rest);
  }

  Schedule& schedule_;
  bool reversed_;
  int threads_, count_ = 0;
  uint64_t words_[kMaxThreads / 64] = {};
};

}  // namespace cuda_emulation
