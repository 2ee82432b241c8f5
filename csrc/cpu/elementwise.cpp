// Elementwise ops on the CPU: registration.

#include "../levels.h"
#include "walk.h"

#define SAFEOPS_BODY "loops.inc"
#include "levels.inc"

namespace safeops {
namespace {

const Loops* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_TABLE_OF)};

struct Cpu {
  static void run(const Call& call, const Geometry& g, void* const* out, const double* constants,
                  ElementwiseOp op, int wanted) {
    const Loops& loops = kTables[current_level.load(std::memory_order_relaxed)][op];
    const Body body =
        wanted == kValue ? loops.value[call.dtype] : loops.gradient[wanted][call.dtype];
    const Walk walk(call, g, out, body, constants);
    spread(g.numel, kElementSize[call.dtype], walk);
  }
};

}  // namespace
}  // namespace safeops

STABLE_TORCH_LIBRARY_IMPL(safeops, CPU, m) {
#define OP(name, inputs, constants)                                         \
  m.impl(#name, &safeops::value<safeops::Cpu, safeops::op_##name, inputs>); \
  m.impl(#name "_backward", &safeops::gradient<safeops::Cpu, safeops::op_##name, inputs>);
#include "../ops.inc"
}
