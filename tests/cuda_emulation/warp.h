// The 32 lanes of a warp: operations that wait for each other, and what they order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "errors.h"

namespace cuda_emulation {

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffff;

enum class Kind { kSync, kShuffle, kShuffleXor, kShuffleDown, kAny, kAll, kBallot };

inline const char* name_of(Kind kind) {
  constexpr const char* names[] = {"__syncwarp",       "__shfl_sync", "__shfl_xor_sync",
                                   "__shfl_down_sync", "__any_sync",  "__all_sync",
                                   "__ballot_sync"};
  return names[int(kind)];
}

// What the lanes of a mask must agree on.
struct Operation {
  Kind kind;
  uint32_t mask;
  int bytes;
  Place place;

  bool operator==(const Operation& other) const {
    return kind == other.kind && mask == other.mask && bytes == other.bytes &&
           place.line == other.place.line;
  }

  std::string text() const {
    char mask_text[16];
    std::snprintf(mask_text, sizeof mask_text, "0x%08x", mask);
    const std::string size = bytes > 0 ? " of " + std::to_string(bytes) + " bytes" : "";
    return std::string(name_of(kind)) + "(" + mask_text + ")" + size + " at " + place.text();
  }
};

inline bool has(uint32_t mask, int lane) { return mask >> lane & 1; }

template <class Visit> void each_lane(uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(__builtin_ctz(mask));
}

inline std::string lanes_text(uint32_t mask, const char* after) {
  if (mask == 0) return "";
  std::string text;
  each_lane(mask, [&](int lane) { text += " " + std::to_string(lane); });
  return " lanes" + text + after;
}

class Warp {
 public:
  explicit Warp(int lanes) : existing_(lanes < kLanes ? (1u << lanes) - 1 : kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) clocks_[lane][lane] = 1;
  }

  void begin_block() { open_.clear(), ended_ = 0; }
  void end(int lane) { ended_ |= 1u << lane; }

  // A lane's step count, and the last step of another lane that it has waited for.
  uint32_t clock(int lane) const { return clocks_[lane][lane]; }
  uint32_t seen(int lane, int other) const { return clocks_[lane][other]; }

  // True if the lane was the last one of the mask: now each of them has its result.
  bool arrive(int lane, const Operation& operation, uint64_t value, int source) {
    check(lane, operation);
    slots_[lane] = {value, source};
    Group& group = join(lane, operation);
    if (group.arrived != operation.mask) return false;
    group = open_.back();
    open_.pop_back();
    complete(operation);
    return true;
  }

  uint64_t result(int lane) const { return slots_[lane].value; }

  // What a lane waits at, and for which lanes.
  std::string waits_at(int lane) const {
    for (const Group& group : open_) {
      if (!has(group.arrived, lane)) continue;
      const uint32_t missing = group.operation.mask & ~group.arrived;
      return group.operation.text() + " for" + lanes_text(missing & ~ended_, "") +
             lanes_text(missing & ended_, " (ended)");
    }
    return "nothing";
  }

 private:
  struct Group {
    Operation operation;
    uint32_t arrived;
  };
  struct Slot {
    uint64_t value;
    int source;
  };

  void check(int lane, const Operation& operation) const {
    const uint32_t mask = operation.mask;
    if (!has(mask, lane)) fail(operation.text() + ": the calling lane is not in the mask");
    if (mask & ~existing_) fail(operation.text() + " names lanes that the block does not have");
    if (mask & ended_) {
      fail(operation.text() + " names" + lanes_text(mask & ended_, " (ended)"));
    }
  }

  // Masks that overlap without being equal are no error as such: if the lanes never agree, the
  // block comes to a halt.
  Group& join(int lane, const Operation& operation) {
    for (Group& group : open_) {
      if (group.operation.mask != operation.mask) continue;
      if (!(group.operation == operation)) {
        fail(operation.text() + " while" + lanes_text(group.arrived, "") + " wait at " +
             group.operation.text() + ": the lanes of a mask must make the same call");
      }
      group.arrived |= 1u << lane;
      return group;
    }
    return open_.emplace_back(Group{operation, 1u << lane});
  }

  void complete(const Operation& operation) {
    if (operation.bytes > 0) {
      shuffle(operation);
    } else if (operation.kind != Kind::kSync) {
      vote(operation);
    }
    order(operation.mask);
  }

  void shuffle(const Operation& operation) {
    uint64_t values[kLanes];
    each_lane(operation.mask, [&](int lane) {
      const int source = slots_[lane].source;
      if (!has(operation.mask, source)) {
        fail(operation.text() + ": lane " + std::to_string(lane) + " reads lane " +
             std::to_string(source) + ", which is not in the mask");
      }
      values[lane] = slots_[source].value;
    });
    each_lane(operation.mask, [&](int lane) { slots_[lane].value = values[lane]; });
  }

  void vote(const Operation& operation) {
    uint32_t ballot = 0;
    each_lane(operation.mask, [&](int lane) { ballot |= (slots_[lane].value != 0) << lane; });
    uint64_t result = ballot;
    if (operation.kind == Kind::kAny) result = ballot != 0;
    if (operation.kind == Kind::kAll) result = ballot == operation.mask;
    each_lane(operation.mask, [&](int lane) { slots_[lane].value = result; });
  }

  // All that the lanes of the mask did so far comes before all that they do next.
  void order(uint32_t mask) {
    uint32_t joined[kLanes] = {};
    each_lane(mask, [&](int lane) {
      for (int i = 0; i < kLanes; ++i) joined[i] = std::max(joined[i], clocks_[lane][i]);
    });
    each_lane(mask, [&](int lane) {
      std::copy(joined, joined + kLanes, clocks_[lane]);
      ++clocks_[lane][lane];
    });
  }

  uint32_t existing_, ended_ = 0;
  std::vector<Group> open_;  // disjoint masks may wait side by side
  Slot slots_[kLanes] = {};
  uint32_t clocks_[kLanes][kLanes] = {};
};

}  // namespace cuda_emulation
