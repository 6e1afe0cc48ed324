// Which windows are read: the rule of `none`, every window once an epoch, and that a step alone decides.
#include "text/loader.h"

#include <numeric>
#include <set>

#include "support/files.h"

namespace moe::test {
namespace {

TEST(Permute, IsABijectionForEverySize) {
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 100, 1000, 4097})
    for (const uint64_t seed : {1, 2}) {
      std::set<int64_t> seen;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t image = permute(RngKey::from_seed(seed), i, n);
        ASSERT_GE(image, 0);
        ASSERT_LT(image, n);
        seen.insert(image);
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
    }
}

// Each (i, image) pair of a random permutation is equally likely.
TEST(Permute, SpreadsEvenly) {
  constexpr int kSize = 10, kDraws = 5000;
  std::vector<int> counts(kSize * kSize);
  for (uint64_t seed = 0; seed < kDraws; ++seed)
    for (int i = 0; i < kSize; ++i) ++counts[static_cast<size_t>(i * kSize + permute(RngKey::from_seed(seed), i, kSize))];
  double chi2 = 0;
  const double expected = double{kDraws} / kSize;
  for (const int c : counts) chi2 += (c - expected) * (c - expected) / expected;
  EXPECT_LT(chi2, 126.1);  // (10-1)^2 = 81 degrees of freedom, p = 0.001
}

TEST(Permute, LargeSizesAreQuick) {
  const int64_t n = int64_t{1} << 40;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) seen.insert(permute(RngKey::from_seed(1), i, n + 1));
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(BatchPlan, NoneFollowsItsRule) {
  const BatchPlan plan(1000, {.context = 64, .batch = 3, .accumulate = 2}, Shuffle::none, 1);
  for (int64_t step = 0; step < 20; ++step)
    for (int64_t a = 0; a < 2; ++a)
      for (int64_t b = 0; b < 3; ++b) EXPECT_EQ(plan.start(step, a, b), ((step * 2 + a) * 3 + b) * 64 % (1000 - 64));
  EXPECT_EQ(plan.rows_per_step(), 6);
  EXPECT_EQ(plan.tokens_per_step(), 384);
}

std::vector<int64_t> epoch_of(const BatchPlan& plan, int64_t epoch, int64_t batch) {
  std::vector<int64_t> starts;
  for (int64_t r = epoch * plan.windows(); r < (epoch + 1) * plan.windows(); ++r) starts.push_back(plan.start(r / batch, 0, r % batch));
  return starts;
}

TEST(BatchPlan, EveryEpochVisitsEveryWindowOnce) {
  for (const int64_t tokens : {17, 18, 33, 1000, 1024, 1025, 5000}) {
    const int64_t context = 16;
    const BatchPlan plan(tokens, {.context = context, .batch = 5}, Shuffle::epoch, 3);
    ASSERT_EQ(plan.windows(), (tokens - 1) / context);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> starts = epoch_of(plan, epoch, 5);
      std::sort(starts.begin(), starts.end());
      ASSERT_GE(starts.front(), 0);
      EXPECT_LT(starts.front(), context);
      ASSERT_LE(starts.back() + context + 1, tokens);
      // All lie a context apart, but for the last, which may have been moved back from the end.
      for (size_t i = 1; i < starts.size(); ++i) {
        if (i + 1 < starts.size()) EXPECT_EQ(starts[i] - starts[i - 1], context) << tokens;
        else EXPECT_TRUE(starts[i] - starts[i - 1] == context || (starts[i] > starts[i - 1] && starts[i] == tokens - context - 1)) << tokens;
      }
    }
  }
}

TEST(BatchPlan, EpochsDifferAndSoDoSeeds) {
  const BatchShape shape{.context = 16, .batch = 4};
  const BatchPlan plan(5000, shape, Shuffle::epoch, 1), same(5000, shape, Shuffle::epoch, 1), other(5000, shape, Shuffle::epoch, 2);
  EXPECT_EQ(epoch_of(plan, 0, 4), epoch_of(same, 0, 4));
  EXPECT_NE(epoch_of(plan, 0, 4), epoch_of(plan, 1, 4));
  EXPECT_NE(epoch_of(plan, 0, 4), epoch_of(other, 0, 4));
  std::set<int64_t> offsets;
  for (int64_t epoch = 0; epoch < 30; ++epoch) {
    const auto starts = epoch_of(plan, epoch, 4);
    offsets.insert(*std::min_element(starts.begin(), starts.end()));
    EXPECT_FALSE(std::is_sorted(starts.begin(), starts.end()));
  }
  EXPECT_GT(offsets.size(), 8u);
}

// Micro-batches are only another way to cut the same rows.
TEST(BatchPlan, AccumulationReadsTheSameRows) {
  for (const Shuffle shuffle : {Shuffle::none, Shuffle::epoch}) {
    const BatchPlan one(5000, {.context = 16, .batch = 8}, shuffle, 1), four(5000, {.context = 16, .batch = 2, .accumulate = 4}, shuffle, 1);
    for (int64_t step = 0; step < 50; ++step)
      for (int64_t row = 0; row < 8; ++row) EXPECT_EQ(one.start(step, 0, row), four.start(step, row / 2, row % 2));
  }
}

TEST(BatchPlan, FillsIdsAndTheirSuccessors) {
  std::vector<int32_t> tokens(500);
  std::iota(tokens.begin(), tokens.end(), 0);
  const Corpus corpus(tokens);
  const BatchPlan plan(corpus.size(), {.context = 10, .batch = 3, .accumulate = 2}, Shuffle::epoch, 1);
  std::vector<int32_t> ids(30), targets(30);
  for (int64_t step = 0; step < 20; ++step) {
    plan.fill(corpus, step, 1, ids.data(), targets.data());
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t t = 0; t < 10; ++t) {
        EXPECT_EQ(ids[static_cast<size_t>(b * 10 + t)], plan.start(step, 1, b) + t);
        EXPECT_EQ(targets[static_cast<size_t>(b * 10 + t)], plan.start(step, 1, b) + t + 1);
      }
  }
}

// The order must not change from one release to the next, or resumed runs would read other text.
TEST(BatchPlan, OrderIsFrozen) {
  const BatchPlan plan(100'000, {.context = 100, .batch = 6}, Shuffle::epoch, 1337);
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < 6; ++b) starts.push_back(plan.start(0, 0, b));
  EXPECT_EQ(starts, (std::vector<int64_t>{42279, 9279, 79, 87979, 66679, 44879}));
}

TEST(BatchPlan, RefusesWhatCannotBe) {
  EXPECT_FAILS(BatchPlan(64, {.context = 64, .batch = 1}, Shuffle::none, 1), "the text has 64 tokens, at least 65 are needed");
  EXPECT_NO_THROW(BatchPlan(65, {.context = 64, .batch = 1}, Shuffle::none, 1));
  EXPECT_FAILS(BatchPlan(64, {.context = 0, .batch = 1}, Shuffle::none, 1), "at least 1");
  EXPECT_FAILS(BatchPlan(64, {.context = 8, .batch = 0}, Shuffle::none, 1), "at least 1");
  EXPECT_EQ(parse_shuffle("none"), Shuffle::none);
  EXPECT_EQ(parse_shuffle("epoch"), Shuffle::epoch);
  EXPECT_FAILS(parse_shuffle("epochs"), "did you mean \"epoch\"?");
}

}  // namespace
}  // namespace moe::test
