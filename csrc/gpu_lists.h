// Lists of tensors on a GPU, for Python. Every copy to the host is torch's, so that it knows of it.
#pragma once

#include "spans.h"

namespace safeops {

// The list is of one GPU. What is read, or decided, is an object with methods as `Readings` has.
pybind11::object read_on_gpu(const pybind11::object& device, int index, std::vector<Span> spans,
                             int power, Columns columns);
pybind11::object read_one_on_gpu(const pybind11::object& tensor, const DLTensor& seen,
                                 const Span& span);
void scale_on_gpu(int index, const std::vector<Span>& spans, const Factor& factor);
void scale_on_gpu_if(int index, const std::vector<Span>& spans, const pybind11::object& decision);
void clip_on_gpu(int index, const std::vector<Span>& spans, const Bounds& bounds);

pybind11::tuple as_tuple(const Statistics& s);
extern const char* const kNames[];  // of dtypes

void define_gpu_lists(pybind11::module_& m);

}  // namespace safeops
