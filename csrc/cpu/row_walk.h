// What the walks of a row op share: buffers, compute types, the way to mend.cpp.
#pragma once

#include <new>

#include "../row_call.h"
#include "mend.h"

namespace safeops {

constexpr std::align_val_t kLine{64};  // a vector that crosses a cache line takes twice the time

struct Free {
  void operator()(char* p) const { ::operator delete(p, kLine); }
};
using Buffer = std::unique_ptr<char, Free>;

inline Buffer buffer(int64_t bytes) {
  return Buffer(static_cast<char*>(::operator new(size_t(bytes), kLine)));
}

inline Dtype compute_type(Dtype dtype) { return dtype == kDouble ? kDouble : kFloat; }
inline int64_t compute_size(Dtype dtype) { return kElementSize[compute_type(dtype)]; }
inline Dtype read_as(const RowCall& call) {
  return call.mask < 0 ? call.dtype : compute_type(call.dtype);
}

// One line, elements at equal distances.
inline Ragged ragged(const RowCall& call) {
  Ragged line{};
  line.op = call.op;
  line.backward = call.backward;
  line.dtype = call.dtype;
  line.n = call.reduced.numel;
  return line;
}

}  // namespace safeops
