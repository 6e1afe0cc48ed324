#include "train/pace.h"

#include <gtest/gtest.h>

namespace moe::pace_test {
namespace {

TrainOptions run_of(int64_t steps, int64_t eval_every, int64_t save_every) {
  TrainOptions o;
  o.steps = steps;
  o.eval_every = eval_every;
  o.save_every = save_every;
  return o;
}

TEST(Pace, CountsWhatIsLeft) {
  const auto counted = [](const TrainOptions& o, int64_t step, bool evaluated) {
    // What the loop of a run does, step by step.
    Agenda left;
    for (int64_t s = step + 1; s <= o.steps; ++s) {
      ++left.steps;
      left.evaluations +=
          evaluated && (s == o.steps || (*o.eval_every > 0 && s % *o.eval_every == 0));
      left.saves += s == o.steps || (o.save_every > 0 && s % o.save_every == 0);
    }
    return left;
  };
  for (int64_t steps : {1, 7, 10})
    for (int64_t every : {0, 1, 3, 5, 20})
      for (int64_t step = 0; step <= steps; ++step)
        for (bool evaluated : {false, true}) {
          const TrainOptions o = run_of(steps, every, every);
          const Agenda a = agenda_after(o, step, evaluated), b = counted(o, step, evaluated);
          EXPECT_EQ(a.steps, b.steps);
          EXPECT_EQ(a.evaluations, b.evaluations)
              << steps << " every " << every << " after " << step;
          EXPECT_EQ(a.saves, b.saves);
        }
}

// One slow step among many moves the time left a little; a machine that stays slow moves it all the
// way.
TEST(Pace, OneStepDoesNotMoveIt) {
  const TrainOptions o = run_of(1000, 0, 0);
  Pace pace(o, 0);
  EXPECT_FALSE(pace.knows());
  pace.took_step(50);
  EXPECT_TRUE(pace.knows());
  for (int i = 0; i < 40; ++i) pace.took_step(2);
  EXPECT_DOUBLE_EQ(pace.step(), 2) << "the first step was a cold one";
  EXPECT_DOUBLE_EQ(pace.seconds_left(o, 41), 2 * 959);
  pace.took_step(8);
  EXPECT_NEAR(pace.step(), 2, 0.35);
  for (int i = 0; i < 20; ++i) pace.took_step(4);
  EXPECT_DOUBLE_EQ(pace.step(), 4);
}

TEST(Pace, CountsEvaluationsSavesAndWhatComesAfter) {
  const TrainOptions o = run_of(100, 10, 50);  // 2048 tokens a step
  Pace pace(o, 4096, 2048);
  for (int i = 0; i < 3; ++i) pace.took_step(3);
  // Before one was timed an evaluation is two forwards of a step, the end one.
  EXPECT_DOUBLE_EQ(pace.seconds_left(o, 0), 100 * 3 + 10 * 2 + 1);
  pace.took_evaluation(4);
  pace.took_save(5);
  pace.took_other(6);  // 2 a step
  EXPECT_DOUBLE_EQ(pace.seconds_left(o, 0), 100 * 5 + 10 * 4 + 2 * 5 + 2);
  EXPECT_DOUBLE_EQ(pace.seconds_left(o, 100), 2) << "the end only";
}

TEST(Pace, StepsThatFit) {
  TrainOptions o = run_of(1, 10, 0);
  Pace pace(o, 4096);
  for (int i = 0; i < 3; ++i) pace.took_step(1);
  pace.took_evaluation(5);
  for (double seconds : {3.0, 47.0, 300.0, 12345.0})
    for (int64_t done : {0, 1, 37}) {
      o.steps = pace.steps_within(seconds, o, done);
      EXPECT_GT(o.steps, done);
      if (o.steps > done + 1) EXPECT_LE(pace.seconds_left(o, done), seconds);
      ++o.steps;
      EXPECT_GT(pace.seconds_left(o, done), seconds);
    }
}

}  // namespace
}  // namespace moe::pace_test
