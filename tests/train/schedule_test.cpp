#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

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

// Ten steps after the warm-up: t = 0.1, 0.2, ... 1.
TEST(Schedule, ExactPoints) {
  const TrainOptions cosine = planned(ScheduleKind::cosine, 4);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 9), 0.6);  // half way: the mean of both
  EXPECT_NEAR(learning_rate(cosine, 5), 0.2 + 0.8 * 0.5 * (1 + std::cos(std::acos(-1.0) * 0.1)), 1e-15);
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
    for (int64_t step = 5; step <= 14; ++step) EXPECT_LT(learning_rate(planned(kind, 4), step), learning_rate(planned(kind, 4), step - 1));
}

}  // namespace
}  // namespace moe
