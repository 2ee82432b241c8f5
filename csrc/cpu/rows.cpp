// Row ops on the CPU: which way a call is walked, threads, registration.

#include <torch/csrc/stable/library.h>

#include <new>

#include "../levels.h"
#include "mend.h"
#include "row_call.h"

#define SAFEOPS_BODY "row_table.inc"
#include "levels.inc"

namespace safeops {
namespace {

constexpr std::align_val_t kLine{64};  // a vector that crosses a cache line takes twice the time

struct Free {
  void operator()(char* p) const { ::operator delete(p, kLine); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer buffer(int64_t bytes) {
  return Buffer(static_cast<char*>(::operator new(size_t(bytes), kLine)));
}

#define SAFEOPS_ROW_TABLE(level) &level::table
const RowKernels* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_ROW_TABLE)};

const RowKernels& table() { return *kTables[current_level.load(std::memory_order_relaxed)]; }

Dtype compute_type(Dtype dtype) { return dtype == kDouble ? kDouble : kFloat; }
int64_t compute_size(Dtype dtype) { return kElementSize[compute_type(dtype)]; }
Dtype read_as(const RowCall& call) { return call.mask < 0 ? call.dtype : compute_type(call.dtype); }

// One line, elements at equal distances.
Ragged ragged(const RowCall& call) {
  Ragged line{};
  line.op = call.op;
  line.backward = call.backward;
  line.dtype = call.dtype;
  line.n = call.reduced.numel;
  return line;
}

void mend_line(const void* call, const void* piece, int64_t index, const Slot& slot) {
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

void mend_column(const void* call, const void* piece, int64_t index, const Slot& slot) {
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

// A number of lines that lie at equal distances; what a kernel cannot read where it lies is copied
// to a buffer, a few lines at a time.
class LineWalk {
 public:
  explicit LineWalk(const RowCall& call)
      : call_(call),
        kernel_(table().lines[call.op][call.backward][read_as(call)]),
        n_(call.reduced.numel) {
    for (int k = 0; k < call.operands; ++k) {
      copied_[k] =
          call.whole[k] && n_ > 1 && (call.reduced.walked > 1 || call.reduced.stride[k][0] != 1);
      copies_ |= copied_[k];
    }
  }

  void operator()(int64_t begin, int64_t end) const {
    std::vector<Slot> slots((n_ + kChunk - 1) / kChunk);
    const int64_t size = compute_size(call_.dtype);
    const Buffer own = buffer(kBuffers * kRoom * size), kept = buffer(keeps() ? n_ * size : 0);
    Buffer copies[kMaxOperands];
    for (int k = 0; k < call_.operands; ++k) {
      if (copied_[k]) copies[k] = buffer(group() * n_ * call_.size[k]);
    }
    Position position(call_.kept, begin);
    while (begin < end) {
      int64_t count = std::min(end - begin, call_.kept.walk_size[0] - position.at[0]);
      if (copies_) count = std::min(count, group());
      Lines lines = at(position, count);
      lines.slots = slots.data();
      lines.buffer = own.get();
      lines.kept = kept.get();
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
    lines.stage = &table().stages[call_.dtype];
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
  int64_t n_;
  bool copied_[kMaxOperands] = {};
  bool copies_ = false;
};

// Lines that lie across memory, a strip of them at a time.
class StripWalk {
 public:
  StripWalk(const RowCall& call, int64_t threads)
      : call_(call),
        kernel_(table().strips[call.op][call.backward][compute_type(call.dtype)]),
        n_(call.reduced.numel),
        inner_(call.kept.walk_size[0]) {
    if (foldable()) fold_ = std::min(n_, (kFoldedWidth + inner_ - 1) / inner_);
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
  static constexpr int64_t kFoldedWidth = 1024, kStripWidth = 4096, kBlockElements = 65536;

  bool foldable() const {
    bool dense = n_ > 1 && inner_ < kFoldedWidth;
    for (int k = 0; k < call_.operands; ++k) {
      if (k != call_.mask && call_.whole[k]) dense &= call_.reduced.stride[k][0] == inner_;
    }
    return dense;
  }

  Strip shape() const {
    Strip strip{};
    strip.rows = n_ / fold_;
    strip.tail = n_ % fold_ * inner_;
    strip.width = width_;
    strip.height = height_;
    strip.fold = fold_;
    strip.pitch = (width_ + 15) / 16 * 16 + kPad;
    strip.stage = &table().stages[call_.dtype];
    strip.mend = mend_column;
    strip.call = &call_;
    return strip;
  }
  int64_t state_bytes() const {
    const Strip strip = shape();
    return strip.pitch * (8 + (4 + 2 * strip.blocks()) * compute_size(call_.dtype));
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
  int64_t n_, inner_, fold_ = 1, height_, strips_, width_, tasks_;
};

bool lies_in_lines(const RowCall& call) {
  const Geometry& g = call.reduced;
  if (g.numel <= 1) return false;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && call.whole[k] && (g.walked > 1 || g.stride[k][0] != 1)) return false;
  }
  return true;
}

bool lies_in_strips(const RowCall& call) {
  if (call.reduced.numel == 0 || call.reduced.walked > 1) return false;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && call.kept.stride[k][0] != 1 && call.kept.walk_size[0] != 1) return false;
  }
  return true;
}

template <class Walk> void spread(int64_t count, int64_t work, const Walk& walk) {
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / (work + 1));
  if (count <= grain) {
    walk(0, count);
  } else {
    torch::stable::parallel_for(0, count, grain, walk);
  }
}

void run_strips(const RowCall& call) {
  const int64_t threads = torch::stable::get_num_threads();
  const StripWalk walk(call, threads);
  if (walk.tasks() >= threads || walk.work() < 2 * kGrainBytes || walk.blocks() == 1) {
    return spread(walk.tasks(), walk.work(), walk);
  }
  for (int64_t task = 0; task < walk.tasks(); ++task) walk.split(task);
}

void run(const RowCall& call) {
  const int64_t lines = call.kept.numel, n = call.reduced.numel;
  if (lines == 0 || (n == 0 && call.whole[call.out])) return;
  if (!lies_in_lines(call) && lies_in_strips(call)) return run_strips(call);
  spread(lines, n * kElementSize[call.dtype], LineWalk(call));
}

int64_t bits_of(const std::vector<int64_t>& dims) {
  int64_t bits = 0;
  for (int64_t d : dims) bits |= int64_t(1) << d;
  return bits;
}

void add_mask(RowCall& call, const std::optional<Tensor>& mask) {
  if (mask) call.add_mask(*mask);
}

// softmax(x, dim, mask) -> Tensor
template <RowOp op> void pointwise(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor x = arguments.take<Tensor>();
  const auto dim = arguments.take<int64_t>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(op, x, int64_t(1) << dim);
  call.add(x, true);
  Tensor result = call.make_out(true);
  add_mask(call, mask);
  call.settle();
  run(call);
  stack[0] = torch::stable::detail::from(result);
}

// softmax_backward(grad, result, dim, mask) -> Tensor
template <RowOp op> void pointwise_backward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>(), result = arguments.take<Tensor>();
  const auto dim = arguments.take<int64_t>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(op, grad, int64_t(1) << dim);
  call.backward = true;
  call.add(grad, true);
  call.add(result, true);
  Tensor dx = call.make_out(true);
  add_mask(call, mask);
  call.settle();
  run(call);
  stack[0] = torch::stable::detail::from(dx);
}

// logsumexp(x, dim, keepdim, mask) -> Tensor
void reduction(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor x = arguments.take<Tensor>();
  const auto dims = arguments.take<std::vector<int64_t>>();
  const bool keepdim = arguments.take<bool>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(kLogSumExp, x, bits_of(dims));
  call.keepdim = keepdim;
  call.add(x, true);
  Tensor result = call.make_out(false);
  add_mask(call, mask);
  call.settle();
  run(call);
  stack[0] = torch::stable::detail::from(result);
}

// logsumexp_backward(grad, x, result, dim, keepdim, mask) -> Tensor
void reduction_backward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments{stack};
  const Tensor grad = arguments.take<Tensor>();
  const Tensor x = arguments.take<Tensor>();
  const Tensor result = arguments.take<Tensor>();
  const auto dims = arguments.take<std::vector<int64_t>>();
  const bool keepdim = arguments.take<bool>();
  const auto mask = arguments.take<std::optional<Tensor>>();
  RowCall call(kLogSumExp, x, bits_of(dims));
  call.backward = true;
  call.keepdim = keepdim;
  call.add(x, true);
  call.add(grad, false);
  call.add(result, false);
  Tensor dx = call.make_out(true);
  add_mask(call, mask);
  call.settle();
  run(call);
  stack[0] = torch::stable::detail::from(dx);
}

}  // namespace
}  // namespace safeops

STABLE_TORCH_LIBRARY_IMPL(safeops, CPU, m) {
  using namespace safeops;
  m.impl("softmax", &pointwise<kSoftmax>);
  m.impl("softmax_backward", &pointwise_backward<kSoftmax>);
  m.impl("log_softmax", &pointwise<kLogSoftmax>);
  m.impl("log_softmax_backward", &pointwise_backward<kLogSoftmax>);
  m.impl("logsumexp", &reduction);
  m.impl("logsumexp_backward", &reduction_backward);
}
