// Row ops: a team of threads holds a line in registers, or a chunk of a line that is longer.
#pragma once

#include "row_work.cuh"

namespace safeops {
namespace {

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

SAFEOPS_FN double largest_top(Team<false>& team, const LineState* chunks, uint32_t count) {
  double top = -kInfinity;
  for (uint32_t c = team.rank; c < count; c += team.size) {
    top = Larger{}(chunks[c].slot.top, top);
  }
  return team.joined(top, Larger{});
}

// The chunks of each line together, in their order.
template <class Kind>
__global__ void __launch_bounds__(kMostThreads) settle_lines(const __grid_constant__ Lines l) {
  using Step = typename Kind::Step;
  Team<false> team(l.threads);
  Line<typename Kind::M, 1, false> line(l, team, blockIdx.x);
  const LineState* chunks = l.states + l.lines + int64_t(line.number) * l.chunks;
  Slot slot = chunks[0].slot;
  if constexpr (Step::measures_top) slot.top = largest_top(team, chunks, l.chunks);
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
