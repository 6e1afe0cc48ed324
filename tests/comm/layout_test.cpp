#include "comm/layout.h"

#include <gtest/gtest.h>

namespace moe::comm::layout_test {
namespace {

TEST(Remnant, KeepsTheSpreadAndSharesMicroBatchesEvenly) {
  struct Case {
    int left;
    int64_t micro_batches, expert_parallel;
    Remnant want;
  };
  for (const Case& c : {Case{3, 8, 1, {2, 1}},  // 3 do not divide 8
                        {3, 12, 1, {3, 1}},     //
                        {3, 12, 2, {2, 2}},     // 3 hold no whole number of copies
                        {7, 16, 4, {4, 4}},     //
                        {3, 8, 4, {2, 2}},      // fewer than a copy was spread over
                        {3, 9, 4, {3, 3}},      //
                        {1, 7, 4, {1, 1}}}) {
    const Remnant got = remnant(c.left, c.micro_batches, c.expert_parallel);
    EXPECT_EQ(got.processes, c.want.processes) << c.left << " of " << c.micro_batches;
    EXPECT_EQ(got.expert_parallel, c.want.expert_parallel) << c.left << " of " << c.micro_batches;
  }
}

}  // namespace
}  // namespace moe::comm::layout_test
