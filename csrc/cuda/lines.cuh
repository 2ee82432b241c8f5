// The lines of one call of a row op, and the registers that hold some elements of one.
#pragma once

#include "places.cuh"
#include "team.cuh"

namespace safeops {

constexpr int kRowOperands = 5, kMaskOperand = 3, kOutOperand = 4;

// What is known of a chunk or a line, and whether the line's results are there already.
struct LineState {
  Slot slot;
  int64_t done;
};

// One call, or a part of one. Inputs as in the CPU's Lines; operand 3 is the mask, 4 the result.
struct Lines {
  Places<kRowOperands> kept, reduced;
  const void* in[kRowInputs];
  const uint8_t* mask;
  void* out;
  uint32_t lines;
  int64_t n, inner;             // elements of a line, and of the runs of which it consists
  int threads;                  // that share a line
  int64_t chunk;                // elements of a chunk
  uint32_t run_chunks, chunks;  // how many a run has, and a line
  LineState* states;            // one a line; then one a chunk, lines one after the other
};

namespace {

// Elements of a line that a thread holds, in as many registers as leave room for the rest.
template <class M> constexpr int kHeld = 64 / int(sizeof(typename M::F));
template <class M> constexpr int kHeldLong = 2 * kHeld<M>;

// One line, as one thread of its team sees it.
template <class M, int width_, bool across> struct Line {
  using Memory = M;
  using F = typename M::F;
  using Word = typename M::Word;
  static constexpr int width = width_;

  const Lines& l;
  Team<across>& team;
  bool there;  // a line that is not is read like the last one, and not written
  bool writes = false;
  uint32_t number;
  int64_t start[kRowOperands];

  SAFEOPS_FN Line(const Lines& lines, Team<across>& t, uint32_t group) : l(lines), team(t) {
    const uint32_t line = group * team.lines + team.slot;
    there = line < l.lines;
    number = there ? line : l.lines - 1;
    l.kept.find(number, start);
  }

  // Runs are the elements that differ in the innermost reduced dimension alone.
  SAFEOPS_FN void enter(uint32_t run) {
    for (int d = 1; d < l.reduced.dims; ++d) {
      const uint32_t next = d + 1 < l.reduced.dims ? run / l.reduced.size[d].size : 0;
      const int64_t here = run - next * l.reduced.size[d].size;
      for (int k = 0; k < kRowOperands; ++k) start[k] += here * l.reduced.stride[k][d];
      run = next;
    }
  }

  // Of an element of the run.
  SAFEOPS_FN int64_t place(int k, int64_t i) const { return start[k] + i * l.reduced.stride[k][0]; }
  SAFEOPS_FN const Word* in(int k, int64_t i) const {
    return static_cast<const Word*>(l.in[k]) + place(k, i);
  }
  SAFEOPS_FN Word* out(int64_t i) const {
    return static_cast<Word*>(l.out) + place(kOutOperand, i);
  }
  SAFEOPS_FN bool taken(int64_t i) const { return !l.mask || l.mask[place(kMaskOperand, i)]; }
};

// A whole line as ragged.h wants it, shared out among the team.
template <class Line> struct RaggedLine {
  using M = typename Line::Memory;
  const Line& line;

  SAFEOPS_FN int64_t place(int k, int64_t i) const {
    const Places<kRowOperands>& p = line.l.reduced;
    int64_t at = line.start[k];
    for (int d = 0; d + 1 < p.dims; ++d) {
      const int64_t next = i / p.size[d].size;
      at += (i - next * p.size[d].size) * p.stride[k][d];
      i = next;
    }
    return at + i * p.stride[k][p.dims > 0 ? p.dims - 1 : 0];
  }
  SAFEOPS_FN double at(int k, int64_t i) const {
    return M::widen(static_cast<const typename M::Word*>(line.l.in[k])[place(k, i)]);
  }
  SAFEOPS_FN bool taken(int64_t i) const {
    return !line.l.mask || line.l.mask[place(kMaskOperand, i)];
  }
  static SAFEOPS_FN double max() { return M::max; }

  template <class Step> SAFEOPS_FN void for_each(Step step) const {
#pragma unroll 1
    for (int64_t i = line.team.rank; i < line.l.n; i += line.team.size) step(i);
  }
  template <class Of> SAFEOPS_FN double sum(Of of) const {
    double total = 0;
    for_each([&](int64_t i) { total += taken(i) ? double(of(i)) : 0; });
    return line.team.joined(total, Add{});
  }
  template <class Is> SAFEOPS_FN double count(Is is) const { return sum(is); }
  template <class Value> SAFEOPS_FN void each(Value value, double hidden) const {
    for_each([&](int64_t i) { put(i, taken(i) ? value(i) : hidden); });
  }
  SAFEOPS_FN void only(double value) const {
    if (line.team.rank == 0) put(0, value);
  }
  SAFEOPS_FN void put(int64_t i, double value) const {
    if (!line.writes) return;
    static_cast<typename M::Word*>(line.l.out)[place(kOutOperand, i)] =
        M::narrow(typename M::F(value));
  }
};

// The elements [begin, end) of a line, of which each thread holds `held`: vectors in turn.
template <class Line, int held> struct Tile {
  using Memory = typename Line::Memory;
  using F = typename Line::F;
  static constexpr int width = Line::width;
  const Line& line;
  int64_t begin, end;

  // step(j, i) for each vector: its registers from j on, its elements from i on.
  template <class Step> SAFEOPS_FN void each(Step step) const {
    const int stride = line.team.size * width;
    const int64_t first = begin + line.team.rank * width;
#pragma unroll
    for (int q = 0; q < held / width; ++q) {
      if (begin + int64_t(q) * stride >= end) break;
      step(q * width, first + int64_t(q) * stride);
    }
  }

  // What is masked, and what the line does not have, is `other`.
  SAFEOPS_FN void read(int k, F other, F (&v)[held]) const {
    each([&](int j, int64_t i) { read_vector(k, other, j, i, v); });
  }

  SAFEOPS_FN void read_vector(int k, F other, int j, int64_t i, F* v) const {
    for (int c = 0; c < width; ++c) v[j + c] = other;
    if (i >= end) return;
    if (!line.l.mask) return load<Memory, width>(line.in(k, i), v + j);
    F all[width];
    load<Memory, width>(line.in(k, i), all);
    for (int c = 0; c < width; ++c) v[j + c] = line.taken(i + c) ? all[c] : other;
  }

  SAFEOPS_FN void write(const F (&v)[held]) const {
    const int64_t stop = line.writes ? end : 0;
    each([&](int j, int64_t i) {
      if (i < stop) store<Memory, width>(line.out(i), v + j);
    });
  }
};

}  // namespace
}  // namespace safeops
