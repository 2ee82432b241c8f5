// Lists of tensors on a GPU: what is read of them stays there until somebody looks.

#include "gpu_lists.h"

#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

namespace py = pybind11;

namespace safeops {

#if defined(SAFEOPS_EMULATED_CUDA) || defined(SAFEOPS_CUDA)
namespace {

DLTensor seen(const py::object& tensor) {
  DLTensor t;
  if (torch->look(tensor.ptr(), &t) != 0) throw py::error_already_set();
  return t;
}

char* address_of(const DLTensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

// Memory on a device, of torch's allocator.
class Memory {
 public:
  Memory(const py::object& device, int64_t bytes) {
    using namespace py::literals;
    const py::module_ module = py::module_::import("torch");
    bytes_ = module.attr("empty")(bytes, "dtype"_a = module.attr("uint8"), "device"_a = device);
  }

  template <class T> T* as() const { return reinterpret_cast<T*>(address_of(seen(bytes_))); }

  template <class T> std::vector<T> on_host(int64_t count) const {
    const py::object copy = bytes_.attr("cpu")();
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), address_of(seen(copy)), count * sizeof(T));
    return values;
  }

 private:
  py::object bytes_;
};

// Where some tensors lie, and by which power they are read.
struct List {
  py::object device;
  int index;
  std::vector<Span> spans;  // of which the readings use the sizes only: the memory may be gone
  int power;
};

class GpuDecision {
 public:
  GpuDecision(const List& list, const Reading* chunks, const Goal& goal, const py::object& norm)
      : memory_(list.device, sizeof(Decision)) {
    const DLTensor to = norm.is_none() ? DLTensor{} : seen(norm);
    cuda::decide(list.index, list.spans, chunks, list.power, goal, memory(),
                 norm.is_none() ? nullptr : address_of(to), to.dtype.bits == 64);
  }

  Decision* memory() const { return memory_.as<Decision>(); }
  const Statistics& all() { return on_host().all; }
  bool bad() { return is_bad(all()); }
  bool writes() { return on_host().writes != 0; }

 private:
  const Decision& on_host() {
    if (!copy_) copy_ = memory_.on_host<Decision>(1).front();
    return *copy_;
  }

  Memory memory_;
  std::optional<Decision> copy_;
};

class GpuReadings {
 public:
  GpuReadings(List list, Columns columns)
      : list_(std::move(list)),
        memory_(list_.device, chunks_of(list_.spans) * int64_t(sizeof(Reading))) {
    auto* const chunks = memory_.as<Reading>();
    const py::gil_scoped_release release;
    cuda::read(list_.index, list_.spans, list_.power, columns, chunks);
  }

  std::vector<int64_t> shape;
  const char* dtype() const { return kNames[list_.spans.front().dtype]; }

  py::tuple total() { return as_tuple(decision().all()); }
  bool bad() { return decision().bad(); }

  py::list rows() const {
    const auto chunks = memory_.on_host<Reading>(chunks_of(list_.spans));
    py::list rows;
    for (const Statistics& s : each_of(list_.spans, chunks, list_.power)) rows.append(as_tuple(s));
    return rows;
  }

  GpuDecision decide(double max_norm, bool drops, const py::object& norm) const {
    return {list_, memory_.as<Reading>(), {max_norm, drops}, norm};
  }

 private:
  GpuDecision& decision() {
    constexpr double nothing_is_beyond = __builtin_inf();
    if (!decision_) decision_.emplace(decide(nothing_is_beyond, false, py::none()));
    return *decision_;
  }

  List list_;
  Memory memory_;
  std::optional<GpuDecision> decision_;
};

}  // namespace

py::object read_on_gpu(const py::object& device, int index, std::vector<Span> spans, int power,
                       Columns columns) {
  return py::cast(GpuReadings({device, index, std::move(spans), power}, columns));
}

py::object read_one_on_gpu(const py::object& tensor, const DLTensor& seen, const Span& span) {
  GpuReadings readings({tensor.attr("device"), seen.device.device_id, {span}, 2}, kEvery);
  readings.shape.assign(seen.shape, seen.shape + seen.ndim);
  return py::cast(std::move(readings));
}

void scale_on_gpu(int index, const std::vector<Span>& spans, const Factor& factor) {
  cuda::scale(index, spans, factor);
}

void scale_on_gpu_if(int index, const std::vector<Span>& spans, const py::object& decision) {
  Decision* const decided = decision.cast<GpuDecision&>().memory();
  const py::gil_scoped_release release;
  cuda::scale_if(index, spans, decided);
}

void clip_on_gpu(int index, const std::vector<Span>& spans, const Bounds& bounds) {
  cuda::clip(index, spans, bounds);
}

void define_gpu_lists(py::module_& m) {
  py::class_<GpuDecision>(m, "GpuDecision")
      .def_property_readonly("bad", &GpuDecision::bad, "Whether an element is NaN or infinite.")
      .def_property_readonly("writes", &GpuDecision::writes, "Whether anything is written.");
  py::class_<GpuReadings> readings(m, "GpuReadings");
  readings.attr("on_gpu") = true;
  readings.def("total", &GpuReadings::total, "What was read, all tensors as one.")
      .def_readonly("shape", &GpuReadings::shape, "Of a single tensor.")
      .def_property_readonly("dtype", &GpuReadings::dtype, "The name of a single tensor's.")
      .def_property_readonly("bad", &GpuReadings::bad, "Whether an element is NaN or infinite.")
      .def("rows", &GpuReadings::rows, "What was read of each tensor.")
      .def("decide", &GpuReadings::decide,
           "A clip to a norm, or the drop of what is not finite, decided on the GPU; the norm goes "
           "to a tensor there.");
}

#else

namespace {
[[noreturn]] void fail() { throw std::logic_error("safeops: built without CUDA kernels"); }
}  // namespace

py::object read_on_gpu(const py::object&, int, std::vector<Span>, int, Columns) { fail(); }
py::object read_one_on_gpu(const py::object&, const DLTensor&, const Span&) { fail(); }
void scale_on_gpu(int, const std::vector<Span>&, const Factor&) { fail(); }
void scale_on_gpu_if(int, const std::vector<Span>&, const py::object&) { fail(); }
void clip_on_gpu(int, const std::vector<Span>&, const Bounds&) { fail(); }
void define_gpu_lists(py::module_&) {}

#endif

}  // namespace safeops
