// What there is of elements and of row ops.
#pragma once

#include <cstdint>

namespace safeops {

enum Dtype { kDouble, kFloat, kHalf, kBFloat16, kDtypes };
constexpr int64_t kElementSize[] = {8, 4, 2, 2};

enum RowOp { kSoftmax, kLogSoftmax, kLogSumExp, kRowOps };
constexpr int kRowInputs = 3;

// What is known of a chunk, a line or a column: its maximum, the sum that counts, what its results
// are made with, and (backward logsumexp) the upstream gradient, which weighs them.
struct Slot { double top, total, scale, weight; };

// Of an elementwise op and its gradient.
constexpr int kMaxInputs = 3, kMaxOutputs = 2, kConstants = 3;

}  // namespace safeops
