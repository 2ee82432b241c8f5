// The levels of this build, and which one is in use.

#include "../levels.h"

#include <iterator>

#include "isa.h"

namespace safeops {

namespace {
constexpr const char* kNames[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_NAME_OF)};
}

std::atomic<int> current_level{int(std::size(kNames)) - 1};

std::vector<std::string> level_names() { return {std::begin(kNames), std::end(kNames)}; }

std::string level_name() { return kNames[current_level]; }

bool use_level(const std::string& name) {
  for (int i = 0; i < int(std::size(kNames)); ++i) {
    if (name == kNames[i]) {
      current_level = i;
      return true;
    }
  }
  return false;
}

}  // namespace safeops
