// Which CPU level the kernels use, and which GPUs they are for.
#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace safeops {

std::vector<std::string> level_names();  // compiled, best first
std::string level_name();                // in use
bool use_level(const std::string& name);
extern std::atomic<int> current_level;  // its place in level_names()

int oldest_gpu();  // the lowest compute capability with kernels, 10 * major + minor

}  // namespace safeops
