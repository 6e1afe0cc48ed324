// Where pairs lie, which fit, and the order in which steps read them.
#include "text/pair_index.h"

#include <set>

#include "support/files.h"
#include "text/loader.h"

namespace moe::test::pair_index_test {
namespace {

// Pair p: a prompt of two tokens, a chosen reply of 1 + p % 3 and a rejected one of 2, all of them
// told apart by their ids.
Corpus pairs_of(int64_t count) {
  std::vector<int32_t> ids;
  std::vector<uint32_t> ends;
  std::vector<TokenSpan> untrained;
  for (int64_t p = 0; p < count; ++p)
    for (const int64_t reply : {1 + p % 3, int64_t{2}}) {
      const auto begin = static_cast<uint32_t>(ids.size());
      untrained.push_back({begin, begin + 2});
      for (int64_t t = 0; t < 2 + reply; ++t) ids.push_back(static_cast<int32_t>(10 * p + t));
      ends.push_back(static_cast<uint32_t>(ids.size()));
    }
  return Corpus::of_pairs(ids, ends, untrained);
}

TEST(PairIndex, LeavesOutWhatIsTooLong) {
  const Corpus corpus = pairs_of(6);
  const PairIndex all(corpus, 4), some(corpus, 3);
  EXPECT_EQ(all.count(), 6);
  EXPECT_EQ(all.left_out(), 0);
  EXPECT_EQ(some.count(), 4) << "chosen texts of five tokens predict four";
  EXPECT_EQ(some.left_out(), 2);
  EXPECT_EQ(all.place(1).begin, 7);
  EXPECT_EQ(all.place(1).middle, 11);
  EXPECT_EQ(all.place(1).end, 15);
  EXPECT_EQ(all.place(1).tokens(), 6);
  EXPECT_EQ(some.place(2).begin, all.place(3).begin);
  EXPECT_FAILS(PairIndex(corpus, 2),
               "each of the 6 preference pairs has a text of more than 3 tokens");
}

TEST(PairIndex, RefusesAReplyWithoutTokens) {
  EXPECT_FAILS(PairIndex(Corpus::of_pairs({1, 2, 3, 1, 2}, {3, 5}, {{0, 2}, {3, 5}}), 8),
               "preference pair 1 of 1: a reply has no token");
}

TEST(PairIndex, ABatchHasBothTextsOfEachPair) {
  const Corpus corpus = pairs_of(5);
  const BatchPlan plan(corpus, {.context = 8, .batch = 2}, Shuffle::none, 1, {});
  TextBatch batch;
  plan.fill(corpus, 0, 0, batch);
  EXPECT_EQ(batch.pairs, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(batch.bounds, (std::vector<int64_t>{0, 2, 5, 8, 11}));
  EXPECT_EQ(batch.ids, (std::vector<int32_t>{0, 1, 0, 1, 2, 10, 11, 12, 10, 11, 12}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{-1, 2, -1, 2, 3, -1, 12, 13, -1, 12, 13}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.predicted, 7);
  EXPECT_EQ(plan.tokens(0), 11);
  EXPECT_EQ(plan.predicted(corpus, 0), 7);
  plan.fill(corpus, 2, 0, batch);
  EXPECT_EQ(batch.pairs, (std::vector<int64_t>{4, 0})) << "in order, from the beginning again";
}

TEST(PairIndex, AnEpochVisitsEachPairOnceInAnOrderOfItsOwn) {
  const Corpus corpus = pairs_of(31);
  const BatchPlan plan(corpus, {.context = 8, .batch = 2, .accumulate = 2}, Shuffle::epoch, 3, {}),
      other(corpus, {.context = 8, .batch = 2, .accumulate = 2}, Shuffle::epoch, 4, {});
  std::vector<std::vector<int64_t>> epochs(2);
  bool differs = false;
  for (int64_t v = 0; v < 62; ++v) {
    const int64_t pair = plan.pair(v / 4, v / 2 % 2, v % 2);
    epochs[static_cast<size_t>(v / 31)].push_back(pair);
    differs |= pair != other.pair(v / 4, v / 2 % 2, v % 2);
  }
  for (const auto& epoch : epochs)
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 31u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_TRUE(differs);
}

TEST(PairIndex, TakesNoMix) {
  EXPECT_FAILS(BatchPlan(pairs_of(3), {.context = 8, .batch = 1}, Shuffle::epoch, 1, {{"a", 2.0}}),
               "mix weights windows of text");
}

}  // namespace
}  // namespace moe::test::pair_index_test
