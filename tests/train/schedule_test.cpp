#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace moe::schedule_test {
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
  for (ScheduleKind kind :
       {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant, ScheduleKind::wsd}) {
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

// Of 14 steps the last 4 fall: t = 1/4 ... 1.
TEST(Schedule, StaysUntilTheCooldown) {
  TrainOptions o = planned(ScheduleKind::wsd, 4);
  o.cooldown = 4.0 / 14;
  EXPECT_EQ(stable_until(o), 10);
  for (int64_t step = 4; step <= 10; ++step) EXPECT_EQ(learning_rate(o, step), 1.0) << step;
  EXPECT_DOUBLE_EQ(learning_rate(o, 11), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 12), 0.2 + 0.8 * (1 - std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(learning_rate(o, 14), 0.2);
  o.min_lr.reset();
  EXPECT_EQ(learning_rate(resolved(o), 14), 0) << "unless it is said, it falls to nothing";
  o.cooldown = 0.9;
  EXPECT_EQ(stable_until(o), 4) << "the warm-up is no part of the cooldown";
}

// Runs of other lengths have the rates of this one as long as all of them are stable.
TEST(Schedule, AStablePhaseIsThatOfEveryLength) {
  const TrainOptions o = planned(ScheduleKind::wsd, 4);
  EXPECT_EQ(stable_until(o), 11);
  TrainOptions longer = o;
  longer.steps = 40;
  for (int64_t step = 1; step <= 11; ++step)
    EXPECT_EQ(learning_rate(longer, step), learning_rate(o, step));
  EXPECT_NE(learning_rate(longer, 12), learning_rate(o, 12));
  EXPECT_EQ(stable_until(planned(ScheduleKind::cosine, 4)), 0);
  EXPECT_GT(stable_until(planned(ScheduleKind::constant, 4)), 1 << 20);
}

// Planned anew before its cooldown it begins it later; in it, it stays where it is until then.
TEST(Schedule, ACooldownThatIsPlannedAnew) {
  const TrainOptions o = planned(ScheduleKind::wsd, 4);
  TrainOptions longer = o;
  longer.replans = {{9, 14}};
  longer.steps = 40;
  EXPECT_EQ(stable_until(longer), 32);
  EXPECT_EQ(learning_rate(longer, 32), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(longer, 40), 0.2);
  longer.replans = {{12, 14}};
  EXPECT_EQ(stable_until(longer), 11);
  for (int64_t step = 12; step <= 32; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(longer, step), learning_rate(o, 12));
  EXPECT_LT(learning_rate(longer, 33), learning_rate(o, 12));
  EXPECT_DOUBLE_EQ(learning_rate(longer, 40), 0.2);
}

// Planned anew to an end whose cooldown would have begun already, it begins it now.
TEST(Schedule, ACooldownThatIsPastBeginsAtOnce) {
  TrainOptions o = planned(ScheduleKind::wsd, 4);
  o.cooldown = 0.4;
  EXPECT_EQ(stable_until(o), 8);
  o.replans = {{7, 14}};
  o.steps = 10;
  EXPECT_EQ(stable_until(o), 7) << "not 6, where the cooldown of ten steps begins";
  EXPECT_EQ(learning_rate(o, 7), 1.0);
  EXPECT_LT(learning_rate(o, 8), 1.0);
  o.replans = {{7, 14}, {8, 10}};
  o.steps = 40;
  EXPECT_EQ(stable_until(o), 7);
}

}  // namespace
}  // namespace moe::schedule_test
