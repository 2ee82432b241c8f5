// Calls of the row ops (softmax, log_softmax, logsumexp) as their kernels see them.
#pragma once

#include "isa.h"

namespace safeops {

// Elements of a line that are treated at a time, in the first cache.
constexpr int64_t kChunk = 2048;
constexpr int64_t chunks_of(int64_t n) { return (n + kChunk - 1) / kChunk; }

// Between memory and the compute type; what is masked reads as `other`.
struct Stage {
  void (*widen)(const char* from, const uint8_t* mask, int64_t n, void* to, double other);
  void (*narrow)(const void* from, int64_t n, char* to);
  int size;    // bytes an element
  bool wide;   // memory holds the compute type
  double max;  // largest finite number
};

// What is to be fetched meanwhile: bytes from one line to the next, and an element.
struct Ahead {
  const char* in;
  int64_t in_step;
  const char* out;
  int64_t out_step;
  int size;
};

// A line or column that its kernel cannot treat: infinities, NaN, all masked, sums that overflow.
using Mend = void (*)(const void* call, const void* piece, int64_t index, const Slot&);

// Lines whose elements lie one after the other, at equal distances. Forward: in[0] is x. Backward:
// in[0] is the upstream gradient and in[1] the result; of logsumexp in[0] is x, and in[1] and
// in[2], the upstream gradient and the result, have one element a line.
struct Lines {
  const char* in[kRowInputs];
  int64_t in_step[kRowInputs];  // bytes from one line to the next
  const uint8_t* mask;
  int64_t mask_step;
  char* out;
  int64_t out_step;
  int64_t n, count;
  const Stage* stage;
  Slot* slots;   // one a chunk
  char* buffer;  // kBuffers times kRoom elements of the compute type
  char* kept;    // for the exponentials of a line, where memory is not wide
  Mend mend;
  const void* call;
};
constexpr int kBuffers = 3;
// Not a multiple of a page: a load would wait for stores at the same offset of another one.
constexpr int64_t kPad = 112, kRoom = 2 * kChunk + kPad;

// Columns next to each other, each a line: read in whole rows, a block of `height` rows at a time.
// With fold > 1 a row is that many short ones, and `tail` elements may follow the last. Operands
// with one element a line lie as the columns do.
struct Strip {
  const char* in[kRowInputs];
  int64_t in_step[kRowInputs];  // bytes from one row to the next
  const uint8_t* mask;
  int64_t mask_step, mask_along, mask_across;  // from one row, line element, column to the next
  uint8_t* mask_copy;  // room for a block, if the mask does not lie as the input does
  char* out;
  int64_t out_step;
  int64_t rows, width, tail, height, fold, pitch;
  const Stage* stage;
  char* state;
  char* buffer;  // kBuffers times `pitch` elements of the compute type
  Mend mend;
  const void* call;

  int64_t blocks() const { return (rows + (tail > 0) + height - 1) / height; }
  int64_t columns() const { return width / fold; }
};

// The steps, for threads that share a line or a strip, and all of them for one thread.
struct LineKernel {
  void (*whole)(const Lines&);
  void (*measure)(const Lines&, int64_t line, int64_t first, int64_t last);
  void (*settle)(const Lines&);
  void (*finish)(const Lines&, int64_t line, int64_t first, int64_t last);
  void (*end)(const Lines&, int64_t line);
};

struct StripKernel {
  void (*whole)(const Strip&);
  void (*measure)(const Strip&, int64_t block);
  void (*settle)(const Strip&);
  void (*finish)(const Strip&, int64_t block);
  void (*end)(const Strip&);
};

// By op, backward, and what the kernel reads: the dtype itself, or on strips and under a mask its
// compute type.
struct RowKernels {
  LineKernel lines[kRowOps][2][kDtypes];
  StripKernel strips[kRowOps][2][kFloat + 1];
  Stage stages[kDtypes];
};

}  // namespace safeops
