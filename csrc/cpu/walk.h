// One call on broadcast operands: which of them are dense, single numbers, whole rows or gathered,
// and the blocks that the loops run over.
#pragma once

#include "../elementwise_call.h"
#include "isa.h"

namespace safeops {

constexpr int64_t kBlock = 1024;    // elements gathered at a time, into the first cache
constexpr int64_t kShortRow = 128;  // rows below this are gathered several at a time

class Walk {
 public:
  Walk(const Call& call, const Geometry& geometry, void* const* out, Body body,
       const double* constants)
      : call_(call), g_(geometry), body_(body) {
    for (int k = 0; k < kMaxOutputs; ++k) out_[k] = static_cast<char*>(out[k]);
    run_.constants = constants;
    for (int k = 0; k < call.inputs; ++k) find_kind(k);
  }

  void operator()(int64_t begin, int64_t end) const {
    Run run = run_;
    if (!needs_position_) return block(run, begin, end - begin);
    alignas(64) char buffer[kMaxInputs][kBlock * sizeof(double)];
    int64_t kept = 0;  // elements in the buffers of periodic operands, from the start of a row
    Position position(g_, begin);
    while (begin < end) {
      const int64_t n = std::min(end - begin, length(position));
      const bool whole = whole_rows() && position.at[0] == 0;
      for (int k = 0; k < call_.inputs; ++k) {
        if (!(whole && periodic_[k] && n <= kept)) place(run, k, position, buffer[k], n);
      }
      kept = whole ? std::max(kept, n) : 0;
      block(run, begin, n);
      begin += n;
      position.advance(g_, begin, n);
    }
  }

 private:
  enum Kind { kDense, kScalar, kRow, kRepeated, kGathered };

  void find_kind(int k) {
    const Sizes& stride = g_.stride[k];
    bool dense = true, scalar = true;
    int64_t expected = 1;
    for (int d = 0; d < g_.walked; ++d) {
      dense &= stride[d] == expected;
      scalar &= stride[d] == 0;
      expected *= g_.walk_size[d];
    }
    const bool long_rows = g_.walk_size[0] >= kShortRow;
    kind_[k] = scalar                        ? kScalar
               : dense                       ? kDense
               : long_rows && stride[0] == 1 ? kRow
               : long_rows && stride[0] == 0 ? kRepeated
                                             : kGathered;
    run_.scalar[k] = kind_[k] == kScalar || kind_[k] == kRepeated;
    run_.value[k] = scalar ? element(call_.data[k], call_.own[k], 0) : 0;
    periodic_[k] = kind_[k] == kGathered;
    for (int d = 1; d < g_.walked; ++d) periodic_[k] &= stride[d] == 0;
    needs_position_ |= kind_[k] > kScalar;
    in_rows_ |= kind_[k] == kRow || kind_[k] == kRepeated;
    gathers_ |= kind_[k] == kGathered;
  }

  // Short rows are gathered several at a time.
  bool whole_rows() const { return !in_rows_ && g_.walk_size[0] < kBlock; }

  int64_t length(const Position& position) const {
    const int64_t inner = g_.walk_size[0], row = inner - position.at[0];
    if (whole_rows()) return kBlock / inner * inner - position.at[0];
    return gathers_ ? std::min(row, kBlock) : row;
  }

  void place(Run& run, int k, const Position& position, char* buffer, int64_t n) const {
    const char* data = static_cast<const char*>(call_.data[k]);
    const int64_t size = kElementSize[call_.dtype];
    if (kind_[k] == kRow) run.in[k] = data + position.offset(g_, k) * size;
    if (kind_[k] == kRepeated) run.value[k] = element(data, call_.dtype, position.offset(g_, k));
    if (kind_[k] != kGathered) return;
    run.in[k] = buffer;
    if (size == 8) copy<uint64_t>(k, position, buffer, n);
    if (size == 4) copy<uint32_t>(k, position, buffer, n);
    if (size == 2) copy<uint16_t>(k, position, buffer, n);
  }

  template <class Word> void copy(int k, const Position& position, char* buffer, int64_t n) const {
    gather(g_, k, position, static_cast<const Word*>(call_.data[k]),
           reinterpret_cast<Word*>(buffer), n);
  }

  void block(Run& run, int64_t begin, int64_t n) const {
    const int64_t byte = begin * kElementSize[call_.dtype];
    for (int k = 0; k < call_.inputs; ++k) {
      if (kind_[k] == kDense) run.in[k] = static_cast<const char*>(call_.data[k]) + byte;
    }
    for (int k = 0; k < kMaxOutputs; ++k) run.out[k] = out_[k] ? out_[k] + byte : nullptr;
    run.n = n;
    body_(run);
  }

  const Call& call_;
  const Geometry& g_;
  Body body_;
  char* out_[kMaxOutputs];
  Run run_{};
  Kind kind_[kMaxInputs];
  bool periodic_[kMaxInputs] = {};
  bool needs_position_ = false, in_rows_ = false, gathers_ = false;
};

}  // namespace safeops
