// Row ops on the CPU: which way a call is walked, threads, registration.

#include "../levels.h"
#include "../row_ops.h"
#include "line_walk.h"
#include "strip_walk.h"

#define SAFEOPS_BODY "row_table.inc"
#include "levels.inc"

namespace safeops {
namespace {

#define SAFEOPS_ROW_TABLE(level) &level::table
const RowKernels* const kTables[] = {SAFEOPS_EACH_LEVEL(SAFEOPS_ROW_TABLE)};

const RowKernels& table() { return *kTables[current_level.load(std::memory_order_relaxed)]; }

bool lies_in_lines(const RowCall& call) {
  if (call.reduced.numel <= 1) return false;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && !call.lies_along(k)) return false;
  }
  return true;
}

bool lies_in_strips(const RowCall& call) {
  const int64_t inner = call.kept.walk_size[0];
  if (call.reduced.numel == 0 || call.reduced.walked > 1) return false;
  for (int k = 0; k < call.operands; ++k) {
    if (k != call.mask && call.kept.stride[k][0] != 1 && inner != 1) return false;
  }
  return call.reduced.numel == 1 || inner >= kNarrow || foldable(call);
}

void run_strips(const RowCall& call) {
  const int64_t threads = torch::stable::get_num_threads();
  const StripWalk walk(call, table(), threads);
  if (walk.tasks() >= threads || walk.work() < 2 * kGrainBytes || walk.blocks() == 1) {
    return spread(walk.tasks(), walk.work(), walk);
  }
  for (int64_t task = 0; task < walk.tasks(); ++task) walk.split(task);
}

void run_lines(const RowCall& call) {
  const LineWalk walk(call, table());
  const int64_t lines = call.kept.numel, threads = torch::stable::get_num_threads();
  if (lines < threads && walk.divisible()) {
    for (int64_t line = 0; line < lines; ++line) walk.split(line);
  } else {
    spread(lines, call.reduced.numel * kElementSize[call.dtype], walk);
  }
}

struct Cpu {
  static void walk(const RowCall& call) {
    if (!lies_in_lines(call) && lies_in_strips(call)) {
      run_strips(call);
    } else {
      run_lines(call);
    }
  }
};

}  // namespace
}  // namespace safeops

STABLE_TORCH_LIBRARY_IMPL(safeops, CPU, m) { safeops::register_rows<safeops::Cpu>(m); }
