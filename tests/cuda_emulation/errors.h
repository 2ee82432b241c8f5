// How a wrong kernel is reported.
#pragma once

#include <string>

namespace cuda_emulation {

// Ends the launch; cudaLaunchKernelEx throws it as std::runtime_error. From outside of a kernel it
// is thrown here.
[[noreturn]] void fail(const std::string& what);

// Where the kernel calls a barrier or a warp operation.
struct Place {
  const char* file;
  int line;
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

}  // namespace cuda_emulation
