// Lines of a row op: directly where they lie together, else copied some at a time.
#pragma once

#include "row_walk.h"

namespace safeops {

inline void mend_line(const void* call, const void* piece, int64_t index, const Slot& slot) {
  const auto& lines = *static_cast<const Lines*>(piece);
  Ragged line = ragged(*static_cast<const RowCall*>(call));
  for (int k = 0; k < kRowInputs; ++k) {
    line.in[k] = lines.in[k] + index * lines.in_step[k];
    line.in_step[k] = lines.stage->size;
  }
  line.mask = lines.mask ? lines.mask + index * lines.mask_step : nullptr;
  line.mask_step = 1;
  line.out = lines.out + index * lines.out_step;
  line.out_step = lines.stage->size;
  mend(line, slot);
}

// A number of lines that lie at equal distances; what a kernel cannot read where it lies is copied
// to a buffer, a few lines at a time.
class LineWalk {
 public:
  LineWalk(const RowCall& call, const RowKernels& table)
      : call_(call),
        kernel_(table.lines[call.op][call.backward][read_as(call)]),
        stage_(&table.stages[call.dtype]),
        n_(call.reduced.numel) {
    for (int k = 0; k < call.operands; ++k) {
      copied_[k] = !call.lies_along(k);
      copies_ |= copied_[k];
    }
  }

  // Long lines, too few for all threads, which need no copy.
  bool divisible() const { return !copies_ && chunks() >= 2 * kShare; }

  // One line, its chunks over all threads.
  void split(int64_t line) const {
    std::vector<Slot> slots(chunks());
    const Buffer kept = kept_buffer();
    const Lines lines = with_buffers(at(Position(call_.kept, line), 1), slots, nullptr, kept);
    over_chunks(lines, kernel_.measure);
    kernel_.settle(lines);
    over_chunks(lines, kernel_.finish);
    kernel_.end(with_buffers(lines, slots, own_buffer(), kept), 0);
  }

  void operator()(int64_t begin, int64_t end) const {
    std::vector<Slot> slots(chunks());
    const Buffer own = own_buffer(), kept = kept_buffer();
    Buffer copies[kMaxOperands];
    for (int k = 0; k < call_.operands; ++k) {
      if (copied_[k]) copies[k] = buffer(group() * n_ * call_.size[k]);
    }
    Position position(call_.kept, begin);
    while (begin < end) {
      int64_t count = std::min(end - begin, call_.kept.walk_size[0] - position.at[0]);
      if (copies_) count = std::min(count, group());
      Lines lines = with_buffers(at(position, count), slots, own, kept);
      for (int k = 0; k < call_.operands; ++k) {
        if (copied_[k]) use_copy(lines, k, copies[k].get(), k != call_.out);
      }
      kernel_.whole(lines);
      if (copied_[call_.out]) bring_back(position, count, copies[call_.out].get());
      begin += count;
      position.advance(call_.kept, begin, count);
    }
  }

 private:
  static constexpr int64_t kShare = 8;  // chunks that are worth a thread

  int64_t chunks() const { return chunks_of(n_); }

  Buffer own_buffer() const { return buffer(kBuffers * kRoom * compute_size(call_.dtype)); }
  Buffer kept_buffer() const { return buffer(keeps() ? n_ * compute_size(call_.dtype) : 0); }

  static Lines with_buffers(Lines lines, std::vector<Slot>& slots, const Buffer& own,
                            const Buffer& kept) {
    lines.slots = slots.data();
    lines.buffer = own.get();
    lines.kept = kept.get();
    return lines;
  }

  void over_chunks(const Lines& lines,
                   void (*body)(const Lines&, int64_t, int64_t, int64_t)) const {
    torch::stable::parallel_for(0, chunks(), kShare, [&](int64_t begin, int64_t end) {
      const Buffer own = own_buffer();
      Lines mine = lines;
      mine.buffer = own.get();
      body(mine, 0, begin, end);
    });
  }

  // A line's exponentials, which softmax and the gradient of logsumexp scale at the end.
  bool keeps() const {
    return call_.op == (call_.backward ? kLogSumExp : kSoftmax) && call_.size[0] == 2;
  }
  int64_t group() const { return std::max<int64_t>(1, std::min<int64_t>(16, 65536 / (n_ + 1))); }

  char* start(const Position& position, int k) const {
    return call_.data[k] + position.offset(call_.kept, k) * call_.size[k];
  }

  Lines at(const Position& position, int64_t count) const {
    Lines lines{};
    lines.n = n_;
    lines.count = count;
    lines.stage = stage_;
    lines.mend = mend_line;
    lines.call = &call_;
    for (int k = 0; k < call_.operands; ++k) {
      put(lines, k, start(position, k), call_.kept.stride[k][0] * call_.size[k]);
    }
    return lines;
  }

  void put(Lines& lines, int k, char* data, int64_t step) const {
    if (k == call_.out) {
      lines.out = data;
      lines.out_step = step;
    } else if (k == call_.mask) {
      lines.mask = reinterpret_cast<const uint8_t*>(data);
      lines.mask_step = step;
    } else {
      lines.in[k] = data;
      lines.in_step[k] = step;
    }
  }

  void use_copy(Lines& lines, int k, char* copy, bool filled) const {
    if (filled) {
      const char* from = k == call_.mask ? reinterpret_cast<const char*>(lines.mask) : lines.in[k];
      transfer(k, const_cast<char*>(from), copy, lines.count, true);
    }
    put(lines, k, copy, n_ * call_.size[k]);
  }

  void bring_back(const Position& position, int64_t count, char* copy) const {
    transfer(call_.out, start(position, call_.out), copy, count, false);
  }

  void transfer(int k, char* far, char* near, int64_t count, bool fetch) const {
    if (call_.size[k] == 8) transfer<uint64_t>(k, far, near, count, fetch);
    if (call_.size[k] == 4) transfer<uint32_t>(k, far, near, count, fetch);
    if (call_.size[k] == 2) transfer<uint16_t>(k, far, near, count, fetch);
    if (call_.size[k] == 1) transfer<uint8_t>(k, far, near, count, fetch);
  }

  // Between `count` lines of an operand and a dense copy, the nearer of the two strides innermost.
  template <class Word>
  void transfer(int k, char* far, char* near, int64_t count, bool fetch) const {
    const Geometry& g = call_.reduced;
    const int64_t across = call_.kept.stride[k][0], along = g.stride[k][0], run = g.walk_size[0];
    Position position(g, 0);
    int64_t row = 0;
    for (int64_t done = 0; done < n_; done += run) {
      Word *a = reinterpret_cast<Word*>(far) + row, *b = reinterpret_cast<Word*>(near) + done;
      const bool lines_inside = std::abs(across) < std::abs(along);
      const int64_t outer = lines_inside ? run : count, inner = lines_inside ? count : run;
      const int64_t far_out = lines_inside ? along : across, far_in = lines_inside ? across : along;
      const int64_t near_out = lines_inside ? 1 : n_, near_in = lines_inside ? n_ : 1;
      for (int64_t i = 0; i < outer; ++i) {
        for (int64_t j = 0; j < inner; ++j) {
          Word& x = a[i * far_out + j * far_in];
          Word& y = b[i * near_out + j * near_in];
          if (fetch)
            y = x;
          else
            x = y;
        }
      }
      row = position.next_row(g, k, row);
    }
  }

  const RowCall& call_;
  const LineKernel& kernel_;
  const Stage* stage_;
  int64_t n_;
  bool copied_[kMaxOperands] = {};
  bool copies_ = false;
};

}  // namespace safeops
