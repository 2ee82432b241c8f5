// Kernels that test the emulation: right ones, and each of the ways to be wrong.
// `selftest NAME` runs one, prints what came of it, and then that right kernels still run.

#include "selftest.cuh"

#include <cstdio>
#include <string>

#include "selftest_halves.cuh"
#include "selftest_right.cuh"
#include "selftest_wrong.cuh"

namespace {

struct Case {
  const char* name;
  void (*run)();
};

#define CASE(name) {#name, [] { launch_kernel(dim3(2), dim3(64), name); }}

const Case kRight[] = {
    {"sums", test_sums},
    {"shapes", test_shapes},
    {"parameters", test_parameters},
    {"limits", test_limits},
    {"halves", test_halves},
    {"threads", test_threads},
    {"order", print_order},
    CASE(votes),
    CASE(shuffles),
    CASE(masks),
    CASE(ordered_by_warps),
    CASE(ordered_by_barriers),
};

const Case kWrong[] = {
    CASE(no_barrier),
    CASE(no_second_barrier),
    CASE(no_barrier_after_many_readers),
    CASE(two_writers),
    CASE(no_syncwarp),
    CASE(no_second_syncwarp),
    CASE(syncwarp_of_others),
    CASE(syncwarp_for_another_warp),
    CASE(barrier_in_branch),
    CASE(barrier_in_both_branches),
    CASE(barriers_of_two_kinds),
    CASE(barrier_and_shuffle),
    CASE(lane_not_in_mask),
    CASE(masks_that_differ),
    CASE(operations_that_differ),
    CASE(types_that_differ),
    {"lanes_that_do_not_exist", [] { launch_kernel(dim3(2), dim3(48), full_shuffle); }},
    CASE(lane_that_ended),
    CASE(source_not_in_mask),
    CASE(never_written),
    CASE(written_by_another_block),
    CASE(index_too_large),
    CASE(index_negative),
    {"misaligned_16",
     [] { launch_kernel(dim3(1), dim3(1), misaligned<uint4>, misaligned_by<uint4>(8)); }},
    {"misaligned_8",
     [] { launch_kernel(dim3(1), dim3(1), misaligned<double>, misaligned_by<double>(4)); }},
    CASE(throws_an_exception),
    CASE(throws_a_number),
    CASE(launches),
    CASE(shuffles_by_halves),
};

void run(const Case& test) {
  try {
    test.run();
    std::puts("ok");
  } catch (const std::runtime_error& error) {
    std::printf("error: %s\n", error.what());
  }
  test_one_sum();
  std::puts("usable");
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count == 2 ? arguments[1] : "";
  for (const Case& test : kRight) {
    if (name == test.name) return run(test), 0;
  }
  for (const Case& test : kWrong) {
    if (name == test.name) return run(test), 0;
  }
  for (const Case& test : kRight) std::printf("right %s\n", test.name);
  for (const Case& test : kWrong) std::printf("wrong %s\n", test.name);
}
