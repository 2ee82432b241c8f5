// Strips of a row op: lines that lie across memory.
#pragma once

#include "row_walk.h"

namespace safeops {

inline void mend_column(const void* call, const void* piece, int64_t index, const Slot& slot) {
  const auto& strip = *static_cast<const Strip*>(piece);
  Ragged line = ragged(*static_cast<const RowCall*>(call));
  for (int k = 0; k < kRowInputs; ++k) {
    line.in[k] = strip.in[k] + index * strip.stage->size;
    line.in_step[k] = strip.in_step[k] / strip.fold;
  }
  line.mask = strip.mask ? strip.mask + index * strip.mask_across : nullptr;
  line.mask_step = strip.mask_along;
  line.out = strip.out + index * strip.stage->size;
  line.out_step = strip.out_step / strip.fold;
  mend(line, slot);
}

constexpr int64_t kFoldedWidth = 1024, kStripWidth = 4096, kBlockElements = 65536;
constexpr int64_t kNarrow = 16;  // columns that are not worth a strip, unless they can be folded

// Short rows one after the other in memory, so that several can be read as one.
inline bool foldable(const RowCall& call) {
  const int64_t inner = call.kept.walk_size[0];
  bool dense = call.reduced.numel > 1 && inner < kFoldedWidth;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && call.whole[k]) dense &= call.reduced.stride[k][0] == inner;
  }
  return dense;
}

// Lines that lie across memory, a strip of them at a time.
class StripWalk {
 public:
  StripWalk(const RowCall& call, const RowKernels& table, int64_t threads)
      : call_(call),
        kernel_(table.strips[call.op][call.backward][compute_type(call.dtype)]),
        stage_(&table.stages[call.dtype]),
        n_(call.reduced.numel),
        inner_(call.kept.walk_size[0]) {
    if (foldable(call)) fold_ = std::min(n_, (kFoldedWidth + inner_ - 1) / inner_);
    const int64_t width = inner_ * fold_, outer = call.kept.numel / inner_;
    height_ = kBlockElements / std::min(width, kStripWidth) * 4 / compute_size(call.dtype);
    height_ = std::min<int64_t>(64, std::max<int64_t>(8, height_));
    strips_ = (inner_ + kStripWidth - 1) / kStripWidth;
    while (outer * strips_ < threads && inner_ / (2 * strips_) >= kFoldedWidth) strips_ *= 2;
    width_ =
        fold_ > 1 ? width : std::min(inner_, ((inner_ + strips_ - 1) / strips_ + 15) / 16 * 16);
    strips_ = (inner_ * fold_ + width_ - 1) / width_;
    tasks_ = outer * strips_;
  }

  int64_t tasks() const { return tasks_; }
  int64_t blocks() const { return shape().blocks(); }
  int64_t work() const { return width_ * (n_ / fold_) * kElementSize[call_.dtype]; }

  void operator()(int64_t begin, int64_t end) const {
    const Buffer state = buffer(state_bytes()), mask = mask_buffer(), row = row_buffer();
    for (int64_t task = begin; task < end; ++task) {
      kernel_.whole(with_buffers(at(task, state), mask, row));
    }
  }

  // One strip, its blocks over all threads.
  void split(int64_t task) const {
    const Buffer state = buffer(state_bytes());
    const Strip strip = at(task, state);
    over_blocks(strip, kernel_.measure);
    kernel_.settle(strip);
    over_blocks(strip, kernel_.finish);
    kernel_.end(strip);
  }

 private:
  Strip shape() const {
    Strip strip{};
    strip.rows = n_ / fold_;
    strip.tail = n_ % fold_ * inner_;
    strip.width = width_;
    strip.height = height_;
    strip.fold = fold_;
    strip.pitch = (width_ + 15) / 16 * 16 + (width_ < 512 ? 0 : kPad);
    strip.stage = stage_;
    strip.mend = mend_column;
    strip.call = &call_;
    return strip;
  }
  int64_t state_bytes() const {
    const Strip strip = shape();
    return 64 + strip.pitch * (8 + (4 + 2 * strip.blocks()) * compute_size(call_.dtype));
  }

  bool mask_lies_alike() const {
    const int k = call_.mask;
    return k < 0 || ((call_.kept.stride[k][0] == 1 || inner_ == 1) &&
                     (fold_ == 1 || call_.reduced.stride[k][0] == inner_));
  }
  Buffer mask_buffer() const { return mask_lies_alike() ? nullptr : buffer(height_ * width_); }

  Buffer row_buffer() const { return buffer(kBuffers * shape().pitch * compute_size(call_.dtype)); }

  static Strip with_buffers(Strip strip, const Buffer& mask, const Buffer& row) {
    strip.mask_copy = reinterpret_cast<uint8_t*>(mask.get());
    strip.buffer = row.get();
    return strip;
  }

  Strip at(int64_t task, const Buffer& state) const {
    Strip strip = shape();
    const int64_t column = task % strips_ * width_;
    strip.width = std::min(strip.width, inner_ * fold_ - column);
    const Position position(call_.kept, task / strips_ * inner_);
    for (int k = 0; k < call_.operands; ++k) {
      char* data = call_.data[k] + call_.size[k] * (position.offset(call_.kept, k) +
                                                    column * call_.kept.stride[k][0]);
      const int64_t step = call_.reduced.stride[k][0] * call_.size[k] * fold_;
      put(strip, k, data, step);
    }
    strip.state = state.get();
    return strip;
  }

  void put(Strip& strip, int k, char* data, int64_t step) const {
    if (k == call_.out) {
      strip.out = data;
      strip.out_step = step;
    } else if (k == call_.mask) {
      strip.mask = reinterpret_cast<const uint8_t*>(data);
      strip.mask_step = step;
      strip.mask_along = call_.reduced.stride[k][0];
      strip.mask_across = call_.kept.stride[k][0];
    } else {
      strip.in[k] = data;
      strip.in_step[k] = step;
    }
  }

  void over_blocks(const Strip& strip, void (*body)(const Strip&, int64_t)) const {
    torch::stable::parallel_for(0, strip.blocks(), 1, [&](int64_t begin, int64_t end) {
      const Buffer mask = mask_buffer(), row = row_buffer();
      const Strip own = with_buffers(strip, mask, row);
      for (int64_t b = begin; b < end; ++b) body(own, b);
    });
  }

  const RowCall& call_;
  const StripKernel& kernel_;
  const Stage* stage_;
  int64_t n_, inner_, fold_ = 1, height_, strips_, width_, tasks_;
};

}  // namespace safeops
