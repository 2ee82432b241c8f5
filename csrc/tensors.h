// Lists of Python tensors for the multi-tensor kernels.
#pragma once

#include <pybind11/pybind11.h>

namespace safeops {

void define_tensors(pybind11::module_& m);

}  // namespace safeops
