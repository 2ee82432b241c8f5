// Lists of Python tensors for the multi-tensor kernels.

#include "tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpu_lists.h"
#include "spans.h"

namespace py = pybind11;

namespace safeops {

const char* const kNames[] = {"float64", "float32", "float16", "bfloat16"};  // by Dtype

py::tuple as_tuple(const Statistics& s) {
  return py::make_tuple(s.norm, s.exponent, s.largest, s.nan, s.posinf, s.neginf, s.zeros,
                        s.subnormal, s.numel, int(is_bad(s)));
}

namespace {

constexpr int64_t kFew = 1 << 12;  // elements that are read before the lock would be given back

// A set of pointers, since the same gradient may come twice.
class Seen {
 public:
  explicit Seen(size_t count) : slots_(size_t(1) << bits(2 * count + 1)) {}

  bool add(const void* pointer) {
    const size_t mask = slots_.size() - 1;
    size_t i = (reinterpret_cast<uintptr_t>(pointer) * 0x9e3779b97f4a7c15u >> 20) & mask;
    for (; slots_[i] != nullptr; i = (i + 1) & mask) {
      if (slots_[i] == pointer) return false;
    }
    slots_[i] = pointer;
    return true;
  }

 private:
  static int bits(size_t n) { return n < 2 ? 1 : 1 + bits(n / 2); }
  std::vector<const void*> slots_;
};

// What one read of some tensors gave. Of the spans only the sizes are used: the memory may be gone.
class Readings {
 public:
  Readings(std::vector<Span> spans, int power, Columns columns)
      : spans_(std::move(spans)), chunks_(cpu::read(spans_, power, columns)), power_(power) {}

  // Of a single tensor.
  std::vector<int64_t> shape;
  const char* dtype() const { return kNames[spans_.front().dtype]; }

  py::tuple total() const { return as_tuple(all_of(spans_, chunks_, power_)); }

  bool bad() const { return std::any_of(chunks_.begin(), chunks_.end(), is_bad<Reading>); }

  py::list rows() const {
    py::list rows;
    for (const Statistics& s : each_of(spans_, chunks_, power_)) rows.append(as_tuple(s));
    return rows;
  }

 private:
  std::vector<Span> spans_;
  std::vector<Reading> chunks_;
  int power_;
};

// Those on one device, that of the first for which there is a kernel: the tensors, or the gradients
// of the objects, each once. None and all others are left to the caller. Each launch on a GPU takes
// one dtype, so there those of a dtype come one after the other.
class Tensors {
 public:
  Tensors(const py::list& objects, bool gradients) : seen_(objects.size()) {
    spans_.reserve(objects.size());
    places_.reserve(objects.size());
    tensors_.reserve(objects.size());
    for (size_t place = 0; place < objects.size(); ++place) {
      const py::handle object = PyList_GET_ITEM(objects.ptr(), place);
      if (gradients) {
        add_once(place, torch->grad_of(object.ptr()));
      } else {
        add(place, py::reinterpret_borrow<py::object>(object));
      }
    }
    if (on_gpu()) sort_by_dtype();
  }

  size_t size() const { return spans_.size(); }
  py::list places() const { return py::cast(places_); }
  py::list tensors() const { return py::cast(tensors_); }
  py::object device() const { return tensors_.front().attr("device"); }

  py::object read(int power, int columns) const {
    if (power != 1 && power != 2) throw std::invalid_argument("safeops: the power is 1 or 2");
    if (columns < 0 || columns >= kColumns)
      throw std::invalid_argument("safeops: 3 kinds of reads");
    const auto wanted = Columns(columns);
    if (on_gpu()) return read_on_gpu(device(), device_.device_id, spans_, power, wanted);
    std::optional<py::gil_scoped_release> release(std::in_place);
    Readings readings(spans_, power, wanted);
    release.reset();
    return py::cast(std::move(readings));
  }

  bool any_double() const {
    return std::any_of(spans_.begin(), spans_.end(),
                       [](const Span& span) { return span.dtype == kDouble; });
  }

  void scale(double value, int shift) const {
    const py::gil_scoped_release release;
    const Factor factor = factor_from(value, shift);
    on_gpu() ? scale_on_gpu(device_.device_id, spans_, factor) : cpu::scale(spans_, factor);
  }

  void scale_if(const py::object& decision) const {
    scale_on_gpu_if(device_.device_id, spans_, decision);
  }

  void clip(double min, double max, double nan) const {
    const py::gil_scoped_release release;
    const Bounds bounds{min, max, nan};
    on_gpu() ? clip_on_gpu(device_.device_id, spans_, bounds) : cpu::clip(spans_, bounds);
  }

  py::list missing, others;

 private:
  bool on_gpu() const { return !spans_.empty() && is_gpu(device_); }

  void add_once(size_t place, py::object object) {
    if (object.is_none()) {
      missing.append(place);
    } else if (seen_.add(object.ptr())) {
      add(place, std::move(object));
    }
  }

  void add(size_t place, py::object object) {
    Span span;
    DLTensor seen;
    if (!to_span(object.ptr(), &span, &seen) || !is_here(seen.device)) {
      others.append(py::make_tuple(place, object));
      return;
    }
    spans_.push_back(span);
    places_.push_back(place);
    tensors_.push_back(std::move(object));
  }

  bool is_here(const DLDevice& device) {
    if (spans_.empty()) device_ = device;
    return device.device_type == device_.device_type && device.device_id == device_.device_id;
  }

  void sort_by_dtype() {
    std::vector<size_t> order(spans_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return spans_[a].dtype < spans_[b].dtype; });
    reorder(order, &spans_);
    reorder(order, &places_);
    reorder(order, &tensors_);
  }

  template <class T> static void reorder(const std::vector<size_t>& order, std::vector<T>* values) {
    std::vector<T> sorted;
    sorted.reserve(order.size());
    for (const size_t i : order) sorted.push_back(std::move((*values)[i]));
    *values = std::move(sorted);
  }

  Seen seen_;
  DLDevice device_{};
  std::vector<Span> spans_;
  std::vector<size_t> places_;
  std::vector<py::object> tensors_;
};

// For one tensor without a list of it.
py::object read_one(const py::object& tensor) {
  Span span;
  DLTensor t;
  if (!to_span(tensor.ptr(), &span, &t)) return py::none();
  if (is_gpu(t.device)) return read_one_on_gpu(tensor, t, span);
  std::optional<py::gil_scoped_release> release;
  if (span.n > kFew) release.emplace();
  Readings readings({span}, 2, kEvery);
  readings.shape.assign(t.shape, t.shape + t.ndim);
  release.reset();
  return py::cast(std::move(readings));
}

}  // namespace

void define_tensors(py::module_& m) {
  m.attr("sees_tensors") = load_torch();
  py::class_<Readings> readings(m, "Readings");
  readings.attr("on_gpu") = false;
  readings.def("total", &Readings::total, "What was read, all tensors as one.")
      .def_readonly("shape", &Readings::shape, "Of a single tensor.")
      .def_property_readonly("dtype", &Readings::dtype, "The name of a single tensor's.")
      .def_property_readonly("bad", &Readings::bad, "Whether an element is NaN or infinite.")
      .def("rows", &Readings::rows, "What was read of each tensor.");
  define_gpu_lists(m);
  m.def("read_one", &read_one, "One read of a tensor, or None if there is no kernel for it.");
  py::class_<Tensors>(m, "Tensors")
      .def(py::init<const py::list&, bool>())
      .def("read", &Tensors::read,
           "Reads all of them once: the norm (0), largest and zeros too (1), subnormal too (2).")
      .def("scale", &Tensors::scale,
           "Multiplies by value * 2**shift in place; 0 for what is not finite.")
      .def("scale_if", &Tensors::scale_if, "The same as a GpuDecision has it.")
      .def("clip", &Tensors::clip, "Clips in place to [min, max], with nan for NaN.")
      .def_property_readonly("any_double", &Tensors::any_double, "Whether one is float64.")
      .def_property_readonly("device", &Tensors::device, "That of all.")
      .def("__len__", &Tensors::size)
      .def_property_readonly("places", &Tensors::places, "Which of the objects the kernels take.")
      .def_property_readonly("tensors", &Tensors::tensors, "Those, as tensors.")
      .def_readonly("missing", &Tensors::missing, "Which objects have None there.")
      .def_readonly("others", &Tensors::others, "Place and tensor where there is no kernel.");
}

}  // namespace safeops
