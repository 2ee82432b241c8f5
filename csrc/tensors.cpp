// Lists of Python tensors for the multi-tensor kernels. Not through the dispatcher: DLPack's
// exchange table tells where a tensor lies without boxing a list of them, and a thousand small
// gradients take no longer to find than to read.

#include "tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpu/multi_tensor.h"

// Of torch's headers this one alone, whose structs DLPack itself keeps stable.
#undef TORCH_TARGET_VERSION
#include <ATen/dlpack.h>

namespace py = pybind11;

namespace safeops {
namespace {

// torch's types, and how to look into their objects.
struct Torch {
  py::object tensor, parameter;
  py::object grad;  // the descriptor: to find it again costs a tenth of a clip of small gradients
  DLPackDLTensorFromPyObjectNoSync look;

  bool is_plain(PyObject* object) const {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    return type == tensor.ptr() || type == parameter.ptr();
  }

  py::object grad_of(PyObject* object) const {
    PyObject* found =
        is_plain(object)
            ? Py_TYPE(grad.ptr())
                  ->tp_descr_get(grad.ptr(), object, reinterpret_cast<PyObject*>(Py_TYPE(object)))
            : PyObject_GetAttrString(object, "grad");
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }
};

const Torch* torch = nullptr;  // never freed: Python may be gone by then

// Whether this torch has the table, in the version of DLPack that the kernels know.
bool load_torch() {
  const py::object tensor = py::module_::import("torch").attr("Tensor");
  const py::object table = py::getattr(tensor, "__dlpack_c_exchange_api__", py::none());
  if (!py::isinstance<py::capsule>(table)) return false;
  const char* name = PyCapsule_GetName(table.ptr());
  const auto* api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(table.ptr(), name));
  if (api->header.version.major != DLPACK_MAJOR_VERSION) return false;
  torch = new Torch{tensor, py::module_::import("torch.nn").attr("Parameter"), tensor.attr("grad"),
                    api->dltensor_from_py_object_no_sync};
  return true;
}

constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16"};  // by Dtype
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

bool to_dtype(const DLDataType& type, Dtype* dtype) {
  if (type.lanes != 1) return false;
  if (type.code == kDLBfloat && type.bits == 16) return *dtype = kBFloat16, true;
  if (type.code != kDLFloat) return false;
  if (type.bits == 64) return *dtype = kDouble, true;
  if (type.bits == 32) return *dtype = kFloat, true;
  if (type.bits == 16) return *dtype = kHalf, true;
  return false;
}

bool is_contiguous(const DLTensor& t) {
  int64_t next = 1;
  for (int d = t.ndim; d-- > 0; next *= t.shape[d]) {
    if (t.shape[d] != 1 && t.strides[d] != next) return false;
  }
  return true;
}

// Without gaps or overlaps, in some order of the dimensions.
bool is_dense(const DLTensor& t) {
  if (t.strides == nullptr || is_contiguous(t)) return true;
  std::vector<int> order(t.ndim);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::pair(t.strides[a], t.shape[a]) < std::pair(t.strides[b], t.shape[b]);
  });
  int64_t next = 1;
  for (const int d : order) {
    if (t.shape[d] == 1) continue;
    if (t.strides[d] != next) return false;
    next *= t.shape[d];
  }
  return true;
}

// Whether the kernels can take this object, and where it lies.
bool to_span(PyObject* object, Span* span, DLTensor* seen) {
  DLTensor& t = *seen;
  if (!torch->is_plain(object)) return false;
  if (torch->look(object, &t) != 0) {
    PyErr_Clear();
    return false;
  }
  if (t.device.device_type != kDLCPU || !to_dtype(t.dtype, &span->dtype)) return false;
  span->n = std::accumulate(t.shape, t.shape + t.ndim, int64_t(1), std::multiplies<int64_t>());
  if (span->n != 0 && (t.data == nullptr || !is_dense(t))) return false;
  span->data = static_cast<char*>(t.data) + t.byte_offset;
  return true;
}

py::tuple as_tuple(const Statistics& s) {
  const bool bad = s.nan + s.posinf + s.neginf != 0;
  return py::make_tuple(s.norm, s.exponent, s.largest, s.nan, s.posinf, s.neginf, s.zeros, s.numel,
                        int(bad));
}

// What one read of some tensors gave. Of the spans only the sizes are used: the memory may be gone.
class Readings {
 public:
  Readings(std::vector<Span> spans, int power, bool detailed)
      : spans_(std::move(spans)), chunks_(safeops::read(spans_, power, detailed)), power_(power) {}

  // Of a single tensor.
  std::vector<int64_t> shape;
  const char* dtype() const { return kNames[spans_.front().dtype]; }

  py::tuple total() const { return as_tuple(all_of(spans_, chunks_, power_)); }

  bool bad() const {
    return std::any_of(chunks_.begin(), chunks_.end(),
                       [](const Reading& c) { return c.nan + c.posinf + c.neginf != 0; });
  }

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

// The tensors, or the gradients of the objects, each once; those that are None or for which there
// is no kernel are left to the caller.
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
  }

  size_t size() const { return spans_.size(); }
  py::list places() const { return py::cast(places_); }
  py::list tensors() const { return py::cast(tensors_); }

  Readings read(int power, bool detailed) const {
    if (power != 1 && power != 2) throw std::invalid_argument("safeops: the power is 1 or 2");
    const py::gil_scoped_release release;
    return Readings(spans_, power, detailed);
  }

  bool any_double() const {
    return std::any_of(spans_.begin(), spans_.end(),
                       [](const Span& span) { return span.dtype == kDouble; });
  }

  void scale(double value, int shift) const {
    const py::gil_scoped_release release;
    safeops::scale(spans_, value, shift);
  }

  void clip(double min, double max, double nan) const {
    const py::gil_scoped_release release;
    safeops::clip(spans_, {min, max, nan});
  }

  py::list missing, others;

 private:
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
    if (!to_span(object.ptr(), &span, &seen)) {
      others.append(py::make_tuple(place, object));
      return;
    }
    spans_.push_back(span);
    places_.push_back(place);
    tensors_.push_back(std::move(object));
  }

  Seen seen_;
  std::vector<Span> spans_;
  std::vector<size_t> places_;
  std::vector<py::object> tensors_;
};

// For one tensor without a list of it.
std::optional<Readings> read_one(const py::object& tensor) {
  Span span;
  DLTensor t;
  if (!to_span(tensor.ptr(), &span, &t)) return std::nullopt;
  std::optional<py::gil_scoped_release> release;
  if (span.n > kFew) release.emplace();
  Readings readings({span}, 2, true);
  readings.shape.assign(t.shape, t.shape + t.ndim);
  return readings;
}

}  // namespace

void define_tensors(py::module_& m) {
  m.attr("sees_tensors") = load_torch();
  py::class_<Readings>(m, "Readings")
      .def("total", &Readings::total, "What was read, all tensors as one.")
      .def_readonly("shape", &Readings::shape, "Of a single tensor.")
      .def_property_readonly("dtype", &Readings::dtype, "The name of a single tensor's.")
      .def_property_readonly("bad", &Readings::bad, "Whether an element is NaN or infinite.")
      .def("rows", &Readings::rows, "What was read of each tensor.");
  m.def("read_one", &read_one, "One read of a tensor, or None if there is no kernel for it.");
  py::class_<Tensors>(m, "Tensors")
      .def(py::init<const py::list&, bool>())
      .def("read", &Tensors::read, "Reads all of them once; largest and zeros only if detailed.")
      .def("scale", &Tensors::scale,
           "Multiplies by value * 2**shift in place; 0 for what is not finite.")
      .def("clip", &Tensors::clip, "Clips in place to [min, max], with nan for NaN.")
      .def_property_readonly("any_double", &Tensors::any_double, "Whether one is float64.")
      .def("__len__", &Tensors::size)
      .def_property_readonly("places", &Tensors::places, "Which of the objects the kernels take.")
      .def_property_readonly("tensors", &Tensors::tensors, "Those, as tensors.")
      .def_readonly("missing", &Tensors::missing, "Which objects have None there.")
      .def_readonly("others", &Tensors::others, "Place and tensor where there is no kernel.");
}

}  // namespace safeops
