// Speed: what is read and written in a repeat, in which order models take turns, and what their
// figures are of the seconds.
#include "evaluate/speed.h"

#include "core/threads.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::test::speed_test {
namespace {

TEST(Speed, MedianIsTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 3);
  EXPECT_FAILS(median({}), "no values");
}

TEST(Speed, RatesAndRatiosAreMedians) {
  const Speed before{
      .prompt = 100, .tokens = 10, .prompt_seconds = {1, 4, 2}, .decode_seconds = {1, 1, 5}},
      after{
          .prompt = 100, .tokens = 10, .prompt_seconds = {0.5, 1, 2}, .decode_seconds = {2, 1, 1}};
  EXPECT_DOUBLE_EQ(before.prompt_rate(), 50);
  EXPECT_DOUBLE_EQ(before.decode_rate(), 10);
  EXPECT_DOUBLE_EQ(speed_up(before, after).prompt, 2)
      << "of 2, 4 and 1, not of the medians 2 and 1";
  EXPECT_DOUBLE_EQ(speed_up(before, after).decode, 1) << "of 0.5, 1 and 5";
}

TEST(Speed, ARepeatReadsThePromptAndWritesTheTokens) {
  auto model = fresh(plain_config());
  moe::Run run(1);
  const SpeedOptions options{.prompt = 9, .tokens = 4};
  Session session(*model, run, 13);
  SpeedProbe probe(*model, session, options);
  int told = 0;
  probe.warm_up([&] { ++told; });
  EXPECT_EQ(told, 1);
  const int64_t warm = session.computed();
  EXPECT_EQ(warm % 13, 0) << "of warming up prompts and the tokens behind them";
  std::vector<std::vector<int32_t>> seen;
  for (int i = 0; i < 2; ++i) {
    probe.measure();
    EXPECT_EQ(session.computed(), warm + (i + 1) * 13);
    seen.emplace_back(session.ids().begin(), session.ids().end());
  }
  EXPECT_NE(seen[0], seen[1]) << "every repeat has ids of its own";
  EXPECT_EQ(probe.speed().prompt_seconds.size(), 2u);
  EXPECT_EQ(probe.speed().decode_seconds.size(), 2u);
  for (const double s : probe.speed().decode_seconds) EXPECT_GT(s, 0);
  EXPECT_EQ(probe.speed().decode_joins, 0) << "one thread waits for no other";
}

TEST(Speed, CountsHowOftenThreadsWaitForEachOther) {
  int64_t before = joins_of_this_thread();
  parallel_for(2, 2, 1, [](int64_t, int64_t, int) {});
  EXPECT_EQ(joins_of_this_thread() - before, 1);
  before = joins_of_this_thread();
  parallel_for(2, 2, 2, [](int64_t, int64_t, int) {});
  EXPECT_EQ(joins_of_this_thread() - before, 0) << "too little work for two threads";
  const Speed speed{.tokens = 4, .decode_joins = 10};
  EXPECT_DOUBLE_EQ(speed.joins_per_token(), 2.5);
}

TEST(Speed, ModelsTakeTurnsAndGoBackwardsEverySecondRound) {
  auto first = fresh(plain_config(), 1), second = fresh(plain_config(), 2);
  moe::Run run(1);
  const SpeedOptions options{.prompt = 3, .tokens = 2};
  Session a(*first, run, 5), b(*second, run, 5);
  std::vector<SpeedProbe> probes = {{*first, a, options}, {*second, b, options}};
  std::string order;
  int64_t fed_a = -1, fed_b = -1;
  measure_in_turns(probes, 3, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 6);
    if (done > 0) order += a.computed() > fed_a ? "a" : b.computed() > fed_b ? "b" : "?";
    fed_a = a.computed(), fed_b = b.computed();
  });
  EXPECT_EQ(order, "abbaab");
  for (const SpeedProbe& probe : probes) EXPECT_EQ(probe.speed().prompt_seconds.size(), 3u);
}

TEST(Speed, RefusesWhatCannotBeMeasured) {
  EXPECT_FAILS(validate(SpeedOptions{.prompt = 0}), "prompt is 0");
  EXPECT_FAILS(validate(SpeedOptions{.tokens = -1}), "tokens is -1");
  EXPECT_FAILS(validate(SpeedOptions{.repeats = 0}), "repeats is 0");
  ModelConfig config = plain_config();
  config.positions = Positions::learned;
  EXPECT_FAILS(validate(SpeedOptions{.prompt = 30, .tokens = 3}, config),
               "a text of 33, but the model has learned positions for 32 tokens only");
  EXPECT_NO_THROW(validate(SpeedOptions{.prompt = 30, .tokens = 2}, config));
}

}  // namespace
}  // namespace moe::test::speed_test
