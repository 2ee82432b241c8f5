// One call of a row op: its operands as strides over the dimensions that are kept and over those
// that are reduced.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "broadcast.h"
#include "results.h"
#include "kinds.h"

namespace safeops {

struct RowCall {
  RowOp op;
  bool backward = false;
  Dtype dtype;
  int64_t reduced_dims;  // bit d: dimension d is reduced
  bool keepdim = true;
  int operands = 0, out = -1, mask = -1;
  const Tensor& home;  // whose device all tensors must be on
  char* data[kMaxOperands];
  int64_t size[kMaxOperands];  // bytes an element
  bool whole[kMaxOperands];    // has the reduced dimensions
  Geometry kept, reduced;

  RowCall(RowOp op_, const Tensor& shape, int64_t dims)
      : op(op_), dtype(dtype_of(shape)), reduced_dims(dims), home(shape) {
    if (shape.dim() > kMaxDims) {
      throw std::runtime_error("safeops: at most 64 dimensions, got " +
                               std::to_string(shape.dim()));
    }
    for (int64_t d = 0; d < shape.dim(); ++d) {
      Geometry& g = side(d);
      g.size[g.dims++] = shape.size(d);
      g.numel *= shape.size(d);
    }
  }

  bool is_reduced(int64_t d) const { return reduced_dims >> d & 1; }
  Geometry& side(int64_t d) { return is_reduced(d) ? reduced : kept; }
  int64_t dims() const { return kept.dims + reduced.dims; }

  void add(const Tensor& t, bool has_reduced) {
    if (dtype_of(t) != dtype) throw std::runtime_error("safeops: expected operands of one dtype");
    check_device(t);
    const bool all = has_reduced || keepdim;
    if (t.dim() != (all ? dims() : kept.dims)) {
      throw std::runtime_error("safeops: the operands have different numbers of dimensions");
    }
    int64_t at = 0;
    Sizes stride;
    for (int64_t d = 0; d < dims(); ++d) {
      stride[d] = is_reduced(d) && !has_reduced ? 0 : t.stride(at);
      at += all || !is_reduced(d);
    }
    check_sizes(t, has_reduced, all);
    place(const_cast<void*>(t.const_data_ptr()), kElementSize[dtype], stride, has_reduced);
  }

  void add_mask(const Tensor& t) {
    if (t.scalar_type() != ScalarType::Bool) {
      throw std::runtime_error("safeops: expected a boolean mask");
    }
    check_device(t);
    Sizes stride;
    const int64_t lead = dims() - t.dim();
    if (lead < 0) throw std::runtime_error("safeops: the mask has more dimensions than the input");
    int64_t at[2] = {};
    for (int64_t d = 0; d < dims(); ++d) {
      const int64_t size = side(d).size[at[is_reduced(d)]++];
      const int64_t own = d < lead ? 1 : t.size(d - lead);
      if (own != 1 && own != size) {
        throw std::runtime_error("safeops: the mask does not broadcast to the input's shape");
      }
      stride[d] = own == 1 && size != 1 ? 0 : d < lead ? 0 : t.stride(d - lead);
    }
    mask = operands;
    place(const_cast<void*>(t.const_data_ptr()), 1, stride, true);
  }

  // The result, contiguous: like the input, or without the reduced dimensions (or 1 there).
  Tensor make_out(bool has_reduced) {
    int64_t shape[kMaxDims], strides[kMaxDims], at[2] = {}, total = 1;
    int count = 0;
    Sizes stride;
    for (int64_t d = 0; d < dims(); ++d) {
      const int64_t size = side(d).size[at[is_reduced(d)]++];
      if (has_reduced || !is_reduced(d))
        shape[count++] = size;
      else if (keepdim)
        shape[count++] = 1;
    }
    for (int d = count - 1; d >= 0; --d) {
      strides[d] = total;
      total *= std::max<int64_t>(shape[d], 1);
    }
    const bool all = has_reduced || keepdim;
    int from = 0;
    for (int64_t d = 0; d < dims(); ++d) {
      stride[d] = is_reduced(d) && !has_reduced ? 0 : strides[from];
      from += all || !is_reduced(d);
    }
    Tensor result = empty(count, shape, strides, total, dtype, home);
    out = operands;
    place(result.mutable_data_ptr(), kElementSize[dtype], stride, has_reduced);
    return result;
  }

  // The elements of a line lie one after the other, if the operand has whole lines.
  bool lies_along(int k) const {
    return !whole[k] || reduced.numel <= 1 || (reduced.walked == 1 && reduced.stride[k][0] == 1);
  }

  // Once all operands are there: dimensions joined where all of them allow it.
  void settle() {
    join(kept);
    join(reduced);
  }

 private:
  void check_device(const Tensor& t) const {
    if (t.is_cpu() != home.is_cpu() || t.get_device_index() != home.get_device_index()) {
      throw std::runtime_error("safeops: expected all tensors on one device");
    }
  }

  void check_sizes(const Tensor& t, bool has_reduced, bool all) {
    int64_t at[2] = {}, own = 0;
    for (int64_t d = 0; d < dims(); ++d) {
      const int64_t size = side(d).size[at[is_reduced(d)]++];
      if (!all && is_reduced(d)) continue;
      const int64_t expected = is_reduced(d) && !has_reduced ? 1 : size;
      if (t.size(own++) != expected) {
        throw std::runtime_error("safeops: the operands have different shapes");
      }
    }
  }

  void place(void* p, int64_t bytes, const Sizes& stride, bool has_reduced) {
    int at[2] = {};
    for (int64_t d = 0; d < dims(); ++d) {
      side(d).stride[operands][at[is_reduced(d)]++] = stride[d];
    }
    data[operands] = static_cast<char*>(p);
    size[operands] = bytes;
    whole[operands++] = has_reduced;
  }

  void join(Geometry& g) {
    g.operands = operands;
    std::array<int, kMaxDims> order;
    for (int d = 0; d < g.dims; ++d) order[d] = g.dims - 1 - d;
    if (g.numel > 0) coalesce(g, order);
  }
};

}  // namespace safeops
