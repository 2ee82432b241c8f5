// Lines that hold infinities, NaN or nothing at all, and gradients whose sums overflow: rare, so
// one element at a time, in double.
#pragma once

#include "rows.h"

namespace safeops {

struct Ragged {
  RowOp op;
  bool backward;
  Dtype dtype;
  const char* in[kRowInputs];   // as in Lines
  int64_t in_step[kRowInputs];  // bytes from one element to the next
  const uint8_t* mask;
  int64_t mask_step;
  char* out;
  int64_t out_step;
  int64_t n;
};

void mend(const Ragged& line, const Slot& slot);

}  // namespace safeops
