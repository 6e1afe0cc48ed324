// What packing and products keep count of where memory is refused in the middle of it: as if the
// call had not been made, so that the next one does what it would have done.
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/gemm/f32_product.h"
#include "ops/cpu/gemm/packed.h"
#include "ops/cpu/gemm/pages.h"
#include "ops/cpu/gemm/row_product.h"
#include "ops/cpu/gemm/weights.h"
#include "ops/memory.h"
#include "support/check.h"
#include "support/refused_memory.h"

namespace moe::test::out_of_memory_test {
namespace {

// Whether `f` got through with so many allocations.
template <class F>
bool gets_through(int64_t allocations, F&& f) {
  try {
    allocations_left = allocations;
    f();
    allocations_left = -1;
    return true;
  } catch (const std::bad_alloc&) {
    allocations_left = -1;
    return false;
  }
}

TEST(OutOfMemory, APackingThatFailedTakesNothingOfTheBudget) {
  constexpr int64_t kExperts = 3;
  Arena arena;
  moe::Run run(1);
  Param w;
  w.name = "experts.up.weight";
  w.bind(draw(arena, DType::f32, {kExperts, 70, 64}, 1));
  const std::array<int64_t, kExperts> experts = {0, 1, 2};
  int64_t each = 0;
  const auto pack = [&] {
    const ArenaScope scope(run.scratch);
    ops::CallWeight weight = ops::call_weight(run, w, ops::Copy::forward, DType::f32);
    each = weight.expert_bytes;
    const std::array<ops::CallWeight*, 1> weights = {&weight};
    ops::pack_within_budget(run, weights, experts);
  };
  // What is made once in a process: the system is asked for what lies free in large pages, and
  // OpenMP begins.
  const ops::Pages first(1);
  parallel_for(2, 2, 1, [](int64_t, int64_t, int) {});
  ops::limit_copies(std::array{&w}, int64_t{1} << 30);
  pack();
  ASSERT_EQ(ops::copies_taken(std::array{&w}), 0) << "of what is met for the first time";
  ops::limit_copies(std::array{&w}, kExperts * each);
  int64_t failed = 0;
  while (!gets_through(failed, pack)) {
    EXPECT_EQ(ops::copies_taken(std::array{&w}), 0);
    EXPECT_TRUE(ops::packed_weight(w).budget->may_have_room(kExperts * each)) << failed;
    ASSERT_LT(++failed, 1000);
  }
  EXPECT_GT(failed, 3) << "nothing was refused where rooms are taken";
  EXPECT_EQ(ops::copies_taken(std::array{&w}), kExperts * each);
  EXPECT_FALSE(ops::packed_weight(w).budget->may_have_room(1));
}

// Or products of few rows would go oneDNN's way from then on.
TEST(OutOfMemory, ASearchForAStretchThatFailedIsMadeAgain) {
  if (!ops::has_f32_products(DType::f16)) GTEST_SKIP() << "no AVX2 here";
  constexpr int64_t kInner = 1536, kRows = 2, kCols = 64;
  // What the search asks oneDNN for is there, so that it is the search itself that is refused
  // memory.
  const ops::Product& product =
      ops::find_product({kRows, kInner, kCols, DType::f32, DType::f32, DType::f32, false, 1});
  const ops::PackLayout& layout = ops::weights_layout(kInner, kCols, DType::f32);
  Arena arena;
  const Tensor rows = arena.alloc_zeroed(DType::f32, {kRows, kInner}),
               sums = arena.alloc(DType::f32, {kRows, kCols});
  product.run(sums.data, rows.data, arena.alloc_zeroed_bytes(layout.bytes),
              arena.alloc_bytes(product.scratch_bytes()));
  for (const int64_t allocations : {0, 1})
    gets_through(allocations, [] { ops::sum_stretch(kInner, DType::f32); });
  EXPECT_GT(ops::sum_stretch(kInner, DType::f32), 0);
}

}  // namespace
}  // namespace moe::test::out_of_memory_test
