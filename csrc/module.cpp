// Schemas of the raw ops, and the Python module: facts about this build, lists of tensors.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/stable/library.h>
#include <torch/headeronly/version.h>
#ifdef SAFEOPS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <map>
#include <string>
#include <vector>

#include "levels.h"
#include "tensors.h"

namespace {

constexpr const char* inputs_of(int inputs) {
  return inputs == 1 ? "Tensor x" : "Tensor x, Tensor y";
}

std::string value_schema(const std::string& name, int inputs, const std::string& constants) {
  return name + "(" + inputs_of(inputs) + ", " + constants + ") -> Tensor";
}

std::string gradient_schema(const std::string& name, int inputs, const std::string& constants) {
  const std::string start = name + "_backward(Tensor grad, ";
  if (inputs == 1) return start + "Tensor saved, " + constants + ") -> Tensor";
  return start + "Tensor? x, Tensor y, " + constants +
         ", bool want_x, bool want_y) -> (Tensor, Tensor)";
}

std::map<std::string, std::string> build_info() {
  std::map<std::string, std::string> info{
      {"torch", TORCH_VERSION}, {"compiler", __VERSION__}, {"c++", std::to_string(__cplusplus)}};
#ifdef SAFEOPS_CUDA
  constexpr int major = CUDART_VERSION / 1000, minor = CUDART_VERSION % 1000 / 10;
  info["cuda"] = std::to_string(major) + "." + std::to_string(minor);
  const int oldest = safeops::oldest_gpu();
  info["compute capability from"] = std::to_string(oldest / 10) + "." + std::to_string(oldest % 10);
#endif
  return info;
}

// The kinds of devices that the kernels of this build run on, as torch calls them.
std::vector<std::string> devices() {
#ifdef SAFEOPS_CUDA
  return {"cpu", "cuda"};
#else
  return {"cpu"};
#endif
}

void use_level(const std::string& name) {
  if (!safeops::use_level(name)) throw pybind11::value_error("no level named '" + name + "'");
}

}  // namespace

STABLE_TORCH_LIBRARY(safeops, m) {
#define OP(name, inputs, constants)                      \
  m.def(value_schema(#name, inputs, constants).c_str()); \
  m.def(gradient_schema(#name, inputs, constants).c_str());
#include "ops.inc"
  for (const std::string name : {"softmax", "log_softmax"}) {
    m.def((name + "(Tensor x, int dim, Tensor? mask) -> Tensor").c_str());
    m.def(
        (name + "_backward(Tensor grad, Tensor result, int dim, Tensor? mask) -> Tensor").c_str());
  }
  m.def("logsumexp(Tensor x, int[] dim, bool keepdim, Tensor? mask) -> Tensor");
  m.def(
      "logsumexp_backward(Tensor grad, Tensor x, Tensor result, int[] dim, bool keepdim, "
      "Tensor? mask) -> Tensor");
}

PYBIND11_MODULE(_C, m) {
  m.def("levels", &safeops::level_names, "The compiled levels, best first.");
  m.def("level", &safeops::level_name, "The level in use.");
  m.def("use_level", &use_level, "Uses the level of that name.");
  m.def("devices", &devices, "The kinds of devices that have kernels.");
  m.def("build_info", &build_info, "The versions this extension was built with.");
  safeops::define_tensors(m);
}
