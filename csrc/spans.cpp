// Where Python tensors lie.

#include "spans.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace safeops {

py::object Torch::grad_of(PyObject* object) const {
  PyObject* found =
      is_plain(object)
          ? Py_TYPE(grad.ptr())
                ->tp_descr_get(grad.ptr(), object, reinterpret_cast<PyObject*>(Py_TYPE(object)))
          : PyObject_GetAttrString(object, "grad");
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

const Torch* torch = nullptr;

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

bool is_dense(const DLTensor& t) {
  if (is_contiguous(t)) return true;
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

}  // namespace safeops
