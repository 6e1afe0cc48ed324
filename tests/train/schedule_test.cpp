#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace moe {
namespace {

TrainOptions planned(ScheduleKind kind, int64_t warmup) {
  TrainOptions o;
  o.schedule = kind;
  o.lr = 1.0;
  o.min_lr = 0.2;
  o.warmup = warmup;
  o.steps = 14;
  return o;
}

TEST(Schedule, WarmUpIsLinearAndReachesTheRate) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant}) {
    const TrainOptions o = planned(kind, 4);
    EXPECT_DOUBLE_EQ(learning_rate(o, 1), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate(o, 2), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(o, 4), 1.0);
  }
}

// What was planned anew goes on from the rate it had, falls to the last one at the new end, and
// what is past stays as it was.
TEST(Schedule, ARunPlannedAnewGoesOnFromItsRate) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear}) {
    const TrainOptions o = planned(kind, 4);
    TrainOptions shorter = o;
    shorter.replans = {{9, 14}};  // half of the way down
    shorter.steps = 11;
    for (int64_t step = 1; step <= 9; ++step)
      EXPECT_EQ(learning_rate(shorter, step), learning_rate(o, step));
    EXPECT_DOUBLE_EQ(learning_rate(shorter, 10),
                     kind == ScheduleKind::linear
                         ? 0.4
                         : 0.2 + 0.8 * 0.5 * (1 + std::cos(0.75 * std::numbers::pi)));
    EXPECT_DOUBLE_EQ(learning_rate(shorter, 11), 0.2);
    TrainOptions again = shorter;
    again.replans = {{9, 14}, {10, 11}};
    again.steps = 20;
    for (int64_t step = 1; step <= 10; ++step)
      EXPECT_EQ(learning_rate(again, step), learning_rate(shorter, step));
    EXPECT_LT(learning_rate(again, 11), learning_rate(shorter, 10));
    EXPECT_GT(learning_rate(again, 11), learning_rate(shorter, 11));
    EXPECT_DOUBLE_EQ(learning_rate(again, 20), 0.2);
    // While it warms up only the way down is another.
    TrainOptions early = o;
    early.replans = {{2, 30}};
    for (int64_t step = 1; step <= 14; ++step)
      EXPECT_DOUBLE_EQ(learning_rate(early, step), learning_rate(o, step));
  }
}

// Ten steps after the warm-up: t = 0.1, 0.2, ... 1.
TEST(Schedule, ExactPoints) {
  const TrainOptions cosine = planned(ScheduleKind::cosine, 4);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 9), 0.6);  // half way: the mean of both
  EXPECT_NEAR(learning_rate(cosine, 5), 0.2 + 0.8 * 0.5 * (1 + std::cos(std::acos(-1.0) * 0.1)),
              1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 14), 0.2);
  const TrainOptions linear = planned(ScheduleKind::linear, 4);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 5), 0.92);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 9), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 14), 0.2);
  const TrainOptions constant = planned(ScheduleKind::constant, 4);
  EXPECT_DOUBLE_EQ(learning_rate(constant, 5), 1);
  EXPECT_DOUBLE_EQ(learning_rate(constant, 14), 1);
}

TEST(Schedule, WithoutWarmUpTheFirstStepHasAlreadyFallen) {
  EXPECT_DOUBLE_EQ(learning_rate(planned(ScheduleKind::linear, 0), 7), 0.6);
  EXPECT_LT(learning_rate(planned(ScheduleKind::cosine, 0), 1), 1.0);
  EXPECT_GT(learning_rate(planned(ScheduleKind::cosine, 0), 1), 0.98);
}

TEST(Schedule, NeverRisesAfterTheWarmUp) {
  for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear})
    for (int64_t step = 5; step <= 14; ++step)
      EXPECT_LT(learning_rate(planned(kind, 4), step), learning_rate(planned(kind, 4), step - 1));
}

}  // namespace
}  // namespace moe
