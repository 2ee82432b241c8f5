// Row ops: a team of threads holds a line in registers, or a chunk of a line that is longer.
//
// measure  maximum and sum of a tile; softmax keeps its exponentials
// settle   what the results are made with: 1 / total, log(total)
// finish   the results of a tile
// again    what finish needs, where measure was long ago
#pragma once

#include "lines.cuh"

namespace safeops {
namespace {

#include "../scalar/exp.h"
#include "../scalar/log.h"
#include "../scalar/softmax.h"
#include "../scalar/ragged.h"

// Half types end at their own largest number; the compute type's results are in range.
template <class M> SAFEOPS_FN typename M::F in_range(typename M::F y) {
  return sizeof(typename M::Word) < sizeof(y) ? within(y, typename M::F(M::max)) : y;
}

// The exponentials of a tile, relative to a maximum, and their sum.
template <class Tile, class F, int held>
SAFEOPS_FN double exponentials(const Tile& tile, double top, const F (&x)[held], F (&e)[held]) {
  const F zero = top == -kInfinity ? F(0) : F(top);
  F sum = 0;
  tile.each([&](int j, int64_t) {
    for (int c = j; c < j + Tile::width; ++c) sum += e[c] = exp_of<kUp>(x[c] - zero);
  });
  return tile.line.team.joined(double(sum), Add{}) * kDown;
}

template <RowOp op, bool backward, class Tile, int held> struct Work;

template <RowOp op, class Tile, int held> struct Work<op, false, Tile, held> {
  using M = typename Tile::Memory;
  using F = typename M::F;
  F v[held];

  SAFEOPS_FN Slot start(const Tile&) const { return {-kInfinity, 0, 0, 1}; }

  template <bool> SAFEOPS_FN void measure(const Tile& tile, Slot* slot) {
    tile.read(0, F(-kInfinity), v);
    F top = -kInfinity;
    tile.each([&](int j, int64_t) {
      for (int c = j; c < j + Tile::width; ++c) top = larger(v[c], top);
    });
    slot->top = tile.line.team.joined(top, Larger{});
    if constexpr (op == kSoftmax) {
      slot->total = exponentials(tile, slot->top, v, v);
    } else {
      F e[held];
      slot->total = exponentials(tile, slot->top, v, e);
    }
  }

  static SAFEOPS_FN void join(Slot* line, const Slot& chunk) {
    line->total += chunk.total * exp_of<0>(chunk.top - line->top);
  }

  static SAFEOPS_FN void settle(Slot* slot) {
    slot->scale = op == kSoftmax ? 1 / slot->total : log_of_positive(slot->total);
  }

  SAFEOPS_FN void again(const Tile& tile, const Slot& slot) {
    tile.read(0, F(-kInfinity), v);
    if (op == kSoftmax) {
      tile.each([&](int j, int64_t) {
        for (int c = j; c < j + Tile::width; ++c) v[c] = exp_of<kUp>(v[c] - F(slot.top));
      });
    }
  }

  SAFEOPS_FN void finish(const Tile& tile, const Slot& slot) {
    if constexpr (op == kLogSumExp) return close(tile.line, slot);
    const Share<F> share(slot.scale);
    tile.each([&](int j, int64_t) {
      for (int c = j; c < j + Tile::width; ++c) {
        v[c] = op == kSoftmax ? in_range<M>(share.of(v[c]))
                              : logarithm(v[c], F(slot.top), F(slot.scale), F(M::max));
      }
    });
    tile.write(v);
  }

  template <class Line> static SAFEOPS_FN void close(const Line& line, const Slot& slot) {
    if (op != kLogSumExp || line.team.rank != 0 || !line.writes) return;
    *line.out(0) = M::narrow(F(::safeops::held(slot.top + slot.scale, M::max)));
  }
};

template <RowOp op, class Tile, int held> struct Work<op, true, Tile, held> {
  using M = typename Tile::Memory;
  using F = typename M::F;
  static constexpr F hidden = op == kSoftmax ? F(0) : F(-kInfinity);
  F g[held], y[held];

  SAFEOPS_FN Slot start(const Tile&) const { return {-kInfinity, 0, 0, 1}; }

  template <bool whole> SAFEOPS_FN void measure(const Tile& tile, Slot* slot) {
    tile.read(0, F(0), g);
    if (whole || op == kSoftmax) tile.read(1, hidden, y);
    F sum = 0, top = -kInfinity;
    tile.each([&](int j, int64_t) {
      for (int c = j; c < j + Tile::width; ++c) {
        sum = op == kSoftmax ? fma(g[c], y[c], sum) : sum + g[c];
        if (whole && op == kLogSoftmax) top = larger(y[c], top);
      }
    });
    slot->total = tile.line.team.joined(double(sum), Add{});
    if constexpr (op == kLogSoftmax) {
      slot->top = whole ? tile.line.team.joined(top, Larger{}) : any_mass(tile);
    }
  }

  // An empty line has none; the first vector nearly always tells that this is not one.
  static SAFEOPS_FN F any_mass(const Tile& tile) {
    bool found = false;
    F top = hidden;
    for (int q = 0; q < held / Tile::width; ++q) {
      const int64_t i =
          tile.begin + (int64_t(q) * tile.line.team.size + tile.line.team.rank) * Tile::width;
      F y[Tile::width];
      tile.read_vector(1, hidden, 0, i, y);
      for (F one : y) found |= one > hidden;
      top = tile.line.team.joined(found ? F(0) : hidden, Larger{});
      if (!tile.line.team.any(top == hidden)) break;
    }
    return top;
  }

  static SAFEOPS_FN void join(Slot* line, const Slot& chunk) { line->total += chunk.total; }
  static SAFEOPS_FN void settle(Slot*) {}

  SAFEOPS_FN void again(const Tile& tile, const Slot&) {
    tile.read(0, F(0), g);
    tile.read(1, hidden, y);
  }

  SAFEOPS_FN void finish(const Tile& tile, const Slot& slot) {
    const F half = F(slot.total / 2), down = F(slot.total * kGradientDown);
    tile.each([&](int j, int64_t) {
      for (int c = j; c < j + Tile::width; ++c) {
        g[c] = op == kSoftmax ? softmax_gradient(g[c], y[c], half)
                              : log_softmax_gradient(g[c], y[c], down, F(M::max));
      }
    });
    tile.write(g);
  }

  template <class Line> static SAFEOPS_FN void close(const Line&, const Slot&) {}
};

// grad softmax(x): as softmax forward, but the result is known, so it is not looked for the
// maximum; and it is rounded, so the sum is not 1.
template <class Tile, int held> struct Work<kLogSumExp, true, Tile, held>
    : Work<kSoftmax, false, Tile, held> {
  using Base = Work<kSoftmax, false, Tile, held>;
  using M = typename Tile::Memory;
  using F = typename M::F;

  SAFEOPS_FN Slot start(const Tile& tile) const {
    return {M::widen(*tile.line.in(2, 0)), 0, 0, M::widen(*tile.line.in(1, 0))};
  }
  template <bool> SAFEOPS_FN void measure(const Tile& tile, Slot* slot) {
    tile.read(0, F(-kInfinity), Base::v);
    slot->total = exponentials(tile, slot->top, Base::v, Base::v);
  }
  static SAFEOPS_FN void join(Slot* line, const Slot& chunk) { line->total += chunk.total; }
  static SAFEOPS_FN void settle(Slot* slot) { slot->scale = slot->weight / slot->total; }
};

template <RowOp op, bool backward, class Line>
SAFEOPS_FN void mend(Line& line, const Slot& slot, bool writes) {
  line.writes = writes;
  mend_line<op, backward>(RaggedLine<Line>{line}, op == kLogSumExp ? slot.weight : slot.total,
                          slot.top);
}

template <bool across> constexpr int kMost = across ? kMostAcross : kMostThreads;
constexpr int kBlocks = 2;  // of kMostAcross threads at once: with more the compiler would spill

// A kind of kernels: op, dtype, how lines lie, elements a thread holds.
template <RowOp op_, bool backward_, class M_, int width, bool across_, int held_> struct RowKind {
  using M = M_;
  static constexpr RowOp op = op_;
  static constexpr bool backward = backward_, across = across_;
  static constexpr int held = held_;
  using OneLine = Line<M, width, across>;
  using Piece = Tile<OneLine, held>;
  using Step = Work<op, backward, Piece, held>;

  static SAFEOPS_FN bool ragged(const Slot& slot) {
    return !is_ordinary<op, backward, typename M::F>(slot, M::max);
  }
};

template <class Kind>
__global__ void __launch_bounds__(kMost<Kind::across>)
    whole_lines(const __grid_constant__ Lines l) {
  Team<Kind::across> team(l.threads);
  typename Kind::OneLine line(l, team, blockIdx.x);
  const typename Kind::Piece tile{line, 0, l.n};
  typename Kind::Step step;
  Slot slot = step.start(tile);
  step.template measure<true>(tile, &slot);
  step.settle(&slot);
  const bool ragged = line.there && Kind::ragged(slot);
  line.writes = line.there && !ragged;
  step.finish(tile, slot);
  if (team.any(ragged)) mend<Kind::op, Kind::backward>(line, slot, ragged);
}

template <class Kind> SAFEOPS_FN typename Kind::Piece chunk_of(typename Kind::OneLine& line) {
  const uint32_t chunk = blockIdx.x % line.l.chunks;
  line.enter(chunk / line.l.run_chunks);
  const int64_t begin = chunk % line.l.run_chunks * line.l.chunk, left = line.l.inner - begin;
  return {line, begin, begin + (left < line.l.chunk ? left : line.l.chunk)};
}

template <class Kind>
__global__ void __launch_bounds__(kMostAcross, kBlocks)
    measure_chunks(const __grid_constant__ Lines l) {
  Team<Kind::across> team(l.threads);
  typename Kind::OneLine line(l, team, blockIdx.x / l.chunks);
  const auto tile = chunk_of<Kind>(line);
  typename Kind::Step step;
  Slot slot = step.start(tile);
  step.template measure<false>(tile, &slot);
  if (line.there && team.rank == 0) {
    l.states[l.lines + int64_t(line.number) * l.chunks + blockIdx.x % l.chunks] = {slot, 0};
  }
}

// The chunks of each line together, in their order.
template <class Kind>
__global__ void __launch_bounds__(kMostThreads) settle_lines(const __grid_constant__ Lines l) {
  using Step = typename Kind::Step;
  Team<false> team(l.threads);
  Line<typename Kind::M, 1, false> line(l, team, blockIdx.x);
  const LineState* chunks = l.states + l.lines + int64_t(line.number) * l.chunks;
  Slot slot = chunks[0].slot;
  for (uint32_t c = team.rank; c < l.chunks; c += team.size) {
    slot.top = Larger{}(chunks[c].slot.top, slot.top);
  }
  slot.top = team.joined(slot.top, Larger{});
  slot.total = 0;
  for (uint32_t c = team.rank; c < l.chunks; c += team.size) Step::join(&slot, chunks[c].slot);
  slot.total = team.joined(slot.total, Add{});
  Step::settle(&slot);
  const bool ragged = line.there && Kind::ragged(slot);
  line.writes = line.there && !ragged;
  Step::close(line, slot);
  if (line.there && team.rank == 0) l.states[line.number] = {slot, ragged};
  if (team.any(ragged)) mend<Kind::op, Kind::backward>(line, slot, ragged);
}

template <class Kind>
__global__ void __launch_bounds__(kMostAcross, kBlocks)
    finish_chunks(const __grid_constant__ Lines l) {
  Team<Kind::across> team(l.threads);
  typename Kind::OneLine line(l, team, blockIdx.x / l.chunks);
  const auto tile = chunk_of<Kind>(line);
  const LineState state = l.states[line.number];
  line.writes = line.there && !state.done;
  typename Kind::Step step;
  step.again(tile, state.slot);
  step.finish(tile, state.slot);
}

}  // namespace
}  // namespace safeops
