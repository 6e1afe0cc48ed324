// Which windows are read: the rule of `none`, every window once an epoch, and that a step alone
// decides.
#include "text/loader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "support/files.h"

namespace moe::test::loader_test {
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
    for (int i = 0; i < kSize; ++i)
      ++counts[static_cast<size_t>(i * kSize + permute(RngKey::from_seed(seed), i, kSize))];
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
      for (int64_t b = 0; b < 3; ++b)
        EXPECT_EQ(plan.window(step, a, b).start, ((step * 2 + a) * 3 + b) * 64 % (1000 - 64));
  EXPECT_EQ(plan.rows_per_step(), 6);
  EXPECT_EQ(plan.tokens(0), 384);
}

std::vector<int64_t> epoch_of(const BatchPlan& plan, int64_t epoch, int64_t batch) {
  std::vector<int64_t> starts;
  for (int64_t r = epoch * plan.windows(); r < (epoch + 1) * plan.windows(); ++r)
    starts.push_back(plan.window(r / batch, 0, r % batch).start);
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
        else
          EXPECT_TRUE(starts[i] - starts[i - 1] == context ||
                      (starts[i] > starts[i - 1] && starts[i] == tokens - context - 1))
              << tokens;
      }
    }
  }
}

TEST(BatchPlan, EpochsDifferAndSoDoSeeds) {
  const BatchShape shape{.context = 16, .batch = 4};
  const BatchPlan plan(5000, shape, Shuffle::epoch, 1), same(5000, shape, Shuffle::epoch, 1),
      other(5000, shape, Shuffle::epoch, 2);
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
    const BatchPlan one(5000, {.context = 16, .batch = 8}, shuffle, 1),
        four(5000, {.context = 16, .batch = 2, .accumulate = 4}, shuffle, 1);
    for (int64_t step = 0; step < 50; ++step)
      for (int64_t row = 0; row < 8; ++row)
        EXPECT_EQ(one.window(step, 0, row).start, four.window(step, row / 2, row % 2).start);
  }
}

TEST(BatchPlan, FillsIdsAndTheirSuccessors) {
  std::vector<int32_t> tokens(500);
  std::iota(tokens.begin(), tokens.end(), 0);
  const Corpus corpus(tokens);
  const BatchPlan plan(corpus.size(), {.context = 10, .batch = 3, .accumulate = 2}, Shuffle::epoch,
                       1);
  TextBatch batch;
  for (int64_t step = 0; step < 20; ++step) {
    plan.fill(corpus, step, 1, batch);
    EXPECT_EQ(batch.bounds, (std::vector<int64_t>{0, 10, 20, 30}));
    EXPECT_EQ(batch.predicted, 30);
    EXPECT_EQ(plan.predicted(corpus, step), 60);
    ASSERT_EQ(batch.ids.size(), 30u);
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t t = 0; t < 10; ++t) {
        EXPECT_EQ(batch.ids[static_cast<size_t>(b * 10 + t)], plan.window(step, 1, b).start + t);
        EXPECT_EQ(batch.targets[static_cast<size_t>(b * 10 + t)],
                  plan.window(step, 1, b).start + t + 1);
        EXPECT_EQ(batch.positions[static_cast<size_t>(b * 10 + t)], t);
      }
  }
}

// The order must not change from one release to the next, or resumed runs would read other text.
TEST(BatchPlan, OrderIsFrozen) {
  const BatchPlan plan(100'000, {.context = 100, .batch = 6}, Shuffle::epoch, 1337);
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < 6; ++b) starts.push_back(plan.window(0, 0, b).start);
  EXPECT_EQ(starts, (std::vector<int64_t>{42279, 9279, 79, 87979, 66679, 44879}));
}

TEST(BatchPlan, RefusesWhatCannotBe) {
  EXPECT_FAILS(BatchPlan(64, {.context = 64, .batch = 1}, Shuffle::none, 1),
               "the text has 64 tokens, at least 65 are needed");
  EXPECT_NO_THROW(BatchPlan(65, {.context = 64, .batch = 1}, Shuffle::none, 1));
  EXPECT_FAILS(BatchPlan(64, {.context = 0, .batch = 1}, Shuffle::none, 1), "at least 1");
  EXPECT_FAILS(BatchPlan(64, {.context = 8, .batch = 0}, Shuffle::none, 1), "at least 1");
}

// Documents of 7, 1, 1 and 11 tokens, as a row of 19 sees them.
TEST(TextBatch, IsCutWhereDocumentsEnd) {
  std::vector<int32_t> tokens(20);
  std::iota(tokens.begin(), tokens.end(), 0);
  const Corpus corpus(tokens, {7, 8, 9, 20}, {{2, 4}, {12, 13}});
  EXPECT_EQ(corpus.documents(), 4);
  EXPECT_EQ(corpus.untrained(), 3);
  TextBatch batch;
  batch.add_row(corpus, 0, 19);
  EXPECT_EQ(batch.bounds, (std::vector<int64_t>{0, 7, 8, 9, 19}));
  EXPECT_EQ(batch.positions,
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const int32_t no = kNoTarget;
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{1, no, no, 4, 5, 6, no, no, no, 10, 11, no, 13, 14,
                                                 15, 16, 17, 18, 19}));
  EXPECT_EQ(batch.predicted, 13);
  // A row that begins inside a document counts from there; one that ends where a document does has
  // no empty sequence behind it.
  batch.add_row(corpus, 3, 4);
  EXPECT_EQ(batch.bounds, (std::vector<int64_t>{0, 7, 8, 9, 19, 23}));
  EXPECT_EQ(batch.targets.back(), kNoTarget) << "the document's last token";
  batch.add_row(corpus, 4, 4);
  EXPECT_EQ(batch.bounds, (std::vector<int64_t>{0, 7, 8, 9, 19, 23, 26, 27}));
  EXPECT_EQ(batch.positions.back(), 0);
  EXPECT_EQ(batch.predicted, 13 + 3 + 2);
  batch.clear();
  EXPECT_EQ(batch.bounds, (std::vector<int64_t>{0}));
  EXPECT_FAILS(batch.add_row(corpus, 1, 19), "goes over the end");
  EXPECT_EQ(mean_document(corpus, {}), 7) << "three ends within 20 tokens";
  EXPECT_EQ(mean_document(Corpus(tokens), {}), 0) << "nothing cuts it";
}

// Three files, of two domains: a.txt (two of them) and b.txt, each token telling where it is from.
class Mixed : public ::testing::Test {
 protected:
  Corpus three_files() const {
    put(folder_ / "1/a.txt", std::string(50, 'a'));
    put(folder_ / "1/b.txt", std::string(83, 'b'));
    put(folder_ / "2/a.txt", std::string(51, 'A'));
    return Corpus({folder_.path()}, *bytes_);
  }
  // How often an epoch reads each window, by source and start without the offset.
  std::map<std::pair<size_t, int64_t>, int> visits(const BatchPlan& plan, int64_t from_epoch,
                                                   int64_t to_epoch) const {
    std::map<std::pair<size_t, int64_t>, int> count;
    for (int64_t r = from_epoch * plan.windows(); r < to_epoch * plan.windows(); ++r) {
      const BatchPlan::Window w = plan.window(r, 0, 0);
      ++count[{w.source, w.start / 10}];
    }
    return count;
  }
  static int sum(const std::map<std::pair<size_t, int64_t>, int>& count, size_t source) {
    int all = 0;
    for (const auto& [window, n] : count) all += window.first == source ? n : 0;
    return all;
  }
  TempFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer("bytes");
  Corpus corpus_ = three_files();
  const BatchShape shape_{.context = 10, .batch = 1};
};

TEST_F(Mixed, AnEpochHasTheWindowsOfEachDomainTimesItsWeight) {
  // 10 and 8 windows
  const BatchPlan plan(corpus_, shape_, Shuffle::epoch, 3, {{"a", 0.5}, {"b", 2}});
  EXPECT_EQ(plan.windows(), 5 + 16);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    const auto count = visits(plan, epoch, epoch + 1);
    EXPECT_EQ(sum(count, 0), 5);
    EXPECT_EQ(sum(count, 1), 16);
  }
  TextBatch batch;
  for (int64_t step = 0; step < 60; ++step) {
    plan.fill(corpus_, step, 0, batch);
    const std::string text = bytes_->decode(batch.ids);
    EXPECT_TRUE(text.find('b') == std::string::npos || text == std::string(10, 'b'))
        << "windows stay inside a domain: " << text;
    EXPECT_EQ(plan.predicted(corpus_, step), batch.predicted);
    if (const size_t cut = text.find("aA"); cut != std::string::npos)
      EXPECT_EQ(batch.bounds[1], static_cast<int64_t>(cut) + 1) << "files are documents";
    else EXPECT_EQ(batch.bounds.size(), 2u);
  }
}

// Two epochs of half the windows are all of them once, and so is each half of an epoch of twice as
// many.
TEST_F(Mixed, NoWindowComesAgainBeforeAllHaveCome) {
  std::vector<int32_t> ids(40 * 10 + 10);
  std::iota(ids.begin(), ids.end(), 0);
  const Corpus corpus(ids);  // 40 windows, of a domain without a name
  const auto windows_of = [&](const BatchPlan& plan, int64_t from, int64_t to) {
    std::vector<int64_t> starts;
    for (int64_t r = from; r < to; ++r) starts.push_back(plan.window(r, 0, 0).start);
    std::sort(starts.begin(), starts.end());
    return starts;
  };
  const BatchPlan half(corpus, shape_, Shuffle::epoch, 1, {{"", 0.5}});
  ASSERT_EQ(half.windows(), 20);
  const std::vector<int64_t> all = windows_of(half, 0, 40), later = windows_of(half, 40, 80);
  for (const auto& pass : {all, later})
    for (size_t i = 1; i < pass.size(); ++i) EXPECT_EQ(pass[i] - pass[i - 1], 10) << i;
  EXPECT_NE(all[0], later[0]) << "each pass has another offset";
  const BatchPlan twice(corpus, shape_, Shuffle::epoch, 1, {{"", 2}});
  ASSERT_EQ(twice.windows(), 80);
  std::map<int64_t, int> by_offset;
  for (const int64_t start : windows_of(twice, 0, 80)) ++by_offset[start % 10];
  ASSERT_EQ(by_offset.size(), 2u);
  EXPECT_EQ(by_offset.begin()->second, 40);
}

TEST_F(Mixed, WithoutAMixTheOrderIsTheOldOne) {
  const BatchPlan old(corpus_.size(), shape_, Shuffle::epoch, 3),
      now(corpus_, shape_, Shuffle::epoch, 3, {}),
      ones(corpus_, shape_, Shuffle::epoch, 3, {{"a", 1}});
  for (int64_t step = 0; step < 60; ++step) {
    EXPECT_EQ(old.window(step, 0, 0).start, now.window(step, 0, 0).start);
    EXPECT_EQ(old.window(step, 0, 0).start, ones.window(step, 0, 0).start);
  }
}

TEST_F(Mixed, TheMeanDocumentIsOfWhatIsVisited) {
  EXPECT_EQ(mean_document(corpus_, {}), 184 / 2) << "two ends within";
  EXPECT_EQ(mean_document(corpus_, {{"b", 0}}), 101) << "the two files of a";
  EXPECT_EQ(mean_document(corpus_, {{"a", 0}}), 0) << "b is one document";
  EXPECT_EQ(mean_document(corpus_, {{"b", 3}}), 101 + 3 * 83) << "and so is each window of it";
}

TEST_F(Mixed, RefusesWhatCannotBe) {
  const auto plan = [&](const Mix& mix, Shuffle shuffle = Shuffle::epoch) {
    BatchPlan(corpus_, shape_, shuffle, 1, mix);
  };
  EXPECT_FAILS(plan({{"c", 2}}), "mix c=2: no domain of the text is called so; known are a, b");
  EXPECT_FAILS(plan({{"a", -1}}), "a weight is from 0");
  EXPECT_FAILS(plan({{"a", std::nan("")}}), "a weight is from 0");
  EXPECT_FAILS(plan({{"a", 0}, {"b", 0}}), "leaves no window");
  EXPECT_FAILS(plan({{"a", 2}}, Shuffle::none), "needs shuffling");
  put(folder_ / "tiny.txt", "short");
  const Corpus with({folder_.path()}, *bytes_);
  EXPECT_FAILS(BatchPlan(with, shape_, Shuffle::epoch, 1, {{"a", 2}}),
               "domain \"tiny\" has 5 tokens, too few");
  EXPECT_NO_THROW(BatchPlan(with, shape_, Shuffle::epoch, 1, {{"tiny", 0}}));
}

}  // namespace
}  // namespace moe::test::loader_test
