// What a row op does with the elements of a line that a team of threads holds.
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
  static constexpr bool measures_top = true;

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
  static constexpr bool measures_top = true;

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
  static constexpr bool measures_top = false;  // it is the result, which may be NaN

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

}  // namespace
}  // namespace safeops
