// The figures of a layer against numbers worked out by hand: five tokens, four experts, two
// choices, two domains.
#include "analyze/data/layer_counts.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moe::test::layer_counts_test {
namespace {

constexpr double kTight = 1e-12;

// Two choices a token, all sent with these weights.
RoutedRows routed(std::vector<int32_t> choice, std::vector<float> weights = {}) {
  RoutedRows rows;
  rows.slots = 2;
  rows.tokens = static_cast<int64_t>(choice.size()) / 2;
  rows.chosen.assign(choice.size(), 1);
  rows.kept = rows.chosen;
  rows.weights = weights.empty() ? std::vector<float>(choice.size(), 0.5f) : std::move(weights);
  rows.choice = std::move(choice);
  return rows;
}

void add(LayerCounts& layer, const RoutedRows& rows, const std::vector<int32_t>& input,
         int64_t domain = 0, const RoutedRows* earlier = nullptr) {
  std::vector<int32_t> target(input.begin() + 1, input.end());
  target.push_back(-1);
  const std::vector<int32_t> predicted(input.size(), 7);
  layer.add(rows, {input, target, predicted}, domain, earlier);
}

// Domain 0: tokens {0,1} {0,2} {1,0}; domain 1: {0,3} {0,1}. c = 5, 3, 1, 1; P = 10.
LayerStats worked() {
  LayerCounts layer(4, 4, 2, true);
  add(layer, routed({0, 1, 0, 2, 1, 0}, {0.5f, 0.25f, 0.5f, 0.5f, 0.75f, 0.25f}), {8, 9, 8});
  add(layer, routed({0, 3, 0, 1}, {0.25f, 0.5f, 0.25f, 0.25f}), {9, 9}, 1);
  return layer.finish();
}

TEST(LayerCounts, LoadAndItsSpread) {
  const LayerStats s = worked();
  EXPECT_EQ(s.layer, 4);
  EXPECT_EQ(s.counts, (std::vector<int64_t>{5, 3, 1, 1}));
  const std::vector<double> load = {0.5, 0.3, 0.1, 0.1},
                            mass = {1.75 / 4, 1.25 / 4, 0.5 / 4, 0.5 / 4};
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_NEAR(s.load[e], load[e], kTight);
    EXPECT_NEAR(s.mass[e], mass[e], kTight);
  }
  EXPECT_NEAR(s.max_vio, 5 / 2.5 - 1, kTight);
  // Window 1: 3, 2, 1, 0 of a mean of 1.5; window 2: 2, 1, 0, 1 of a mean of 1.
  EXPECT_NEAR(s.max_vio_batch, (1.0 + 1.0) / 2, kTight);
  EXPECT_NEAR(s.cv2, ((2.5 * 2.5 + 0.5 * 0.5 + 1.5 * 1.5 + 1.5 * 1.5) / 4) / (2.5 * 2.5), kTight);
  const double h = -(0.5 * std::log(0.5) + 0.3 * std::log(0.3) + 0.2 * std::log(0.1));
  EXPECT_NEAR(s.load_entropy, h / std::log(4.0), kTight);
  EXPECT_NEAR(s.effective_experts, std::exp(h), kTight);
  EXPECT_EQ(s.dead, 0);
  EXPECT_EQ(s.dropped, 0);
  EXPECT_EQ(s.unrouted, 0);
  EXPECT_FALSE(s.router_entropy || s.margin || s.top_score || s.saturation);
}

TEST(LayerCounts, DomainsAndCoactivation) {
  const LayerStats s = worked();
  const std::vector<double> domain = {1, 2.0 / 3, 1.0 / 3, 0, 1, 0.5, 0, 0.5};
  // Of the 5 tokens with expert 0, 3 have 1 too; of the 3 with expert 1, all have 0.
  const std::vector<double> together = {1, 0.6, 0.2, 0.2, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1};
  for (size_t i = 0; i < domain.size(); ++i) EXPECT_NEAR(s.domain.at[i], domain[i], kTight) << i;
  for (size_t i = 0; i < together.size(); ++i)
    EXPECT_NEAR(s.coactivation.at[i], together[i], kTight) << i;
}

// Input 8: tokens {0,1} {1,0}; 9: {0,2} {0,3} {0,1}. Both always go to expert 0, so 1. Next id: 9
// after {0,1} and {0,3}, 8 after {0,2}.
TEST(LayerCounts, VocabularyCountsEveryChoiceAndWeighsIdsAlike) {
  EXPECT_NEAR(*worked().vocabulary_input, 1, kTight);
  EXPECT_NEAR(*worked().vocabulary_target, 1, kTight);
  LayerCounts layer(0, 4, 1, true);
  add(layer, routed({0, 1, 2, 3, 2, 1, 0, 1}), {5, 5, 5, 6});
  const LayerStats s = layer.finish();
  // 5: experts 1 and 2 twice of 3; 6: always
  EXPECT_NEAR(*s.vocabulary_input, (2.0 / 3 + 1) / 2, kTight);
  // 5 follows {0,1} and {2,3}; 6 follows {2,1}; nothing follows the last
  EXPECT_NEAR(*s.vocabulary_target, (0.5 + 1) / 2, kTight);
  // 7 at all four tokens, expert 1 at three of them
  EXPECT_NEAR(*s.vocabulary_predicted, 3.0 / 4, kTight);
}

TEST(LayerCounts, FavouritesNeedTenOccurrences) {
  LayerCounts layer(0, 4, 1, true);
  add(layer, routed({0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 3}),
      {5, 5, 5, 5, 5, 5, 5, 5, 5, 5});
  add(layer, routed({2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3}),
      {6, 6, 6, 6, 6, 6, 6, 6, 6});
  const LayerStats s = layer.finish();
  ASSERT_EQ(s.favourites[0].size(), 1u);
  EXPECT_EQ(s.favourites[0][0].id, 5);
  EXPECT_EQ(s.favourites[0][0].occurrences, 10);
  EXPECT_NEAR(s.favourites[0][0].share, 0.9, kTight);
  for (size_t e = 1; e < 4; ++e)
    EXPECT_TRUE(s.favourites[e].empty())
        << e;  // of equals the lowest expert has it; 6 occurs nine times
}

TEST(LayerCounts, FavouritesStandByShareThenOccurrences) {
  LayerCounts layer(0, 2, 1, true);
  for (const auto& [id, times] : {std::pair{3, 10}, {4, 12}, {5, 10}})
    for (int i = 0; i < times; ++i) {
      RoutedRows rows = routed({id == 3 && i == 0 ? 1 : 0, 1});
      rows.chosen[1] = 0;
      add(layer, rows, {id});
    }
  const LayerStats s = layer.finish();
  ASSERT_EQ(s.favourites[0].size(), 3u);
  EXPECT_EQ(s.favourites[0][0].id, 4);
  EXPECT_EQ(s.favourites[0][1].id, 5);
  EXPECT_EQ(s.favourites[0][2].id, 3);
}

TEST(LayerCounts, ScoresMakeEntropyMarginAndTop) {
  LayerCounts layer(0, 4, 1, true);
  RoutedRows rows = routed({0, 1, 3, 2});
  // the second row sums to 2, as sigmoid scores may
  rows.scores = {0.5f, 0.25f, 0.125f, 0.125f, 0.25f, 0.5f, 0.5f, 0.75f};
  add(layer, rows, {1, 2});
  const LayerStats s = layer.finish();
  const double first = 0.5 * std::log(2) + 0.25 * std::log(4) + 0.25 * std::log(8);
  const double second = 0.125 * std::log(8) + 2 * 0.25 * std::log(4) + 0.375 * std::log(8.0 / 3);
  EXPECT_NEAR(*s.router_entropy, (first + second) / 2 / std::log(4.0), kTight);
  EXPECT_NEAR(*s.top_score, (0.5 + 0.75) / 2, kTight);
  EXPECT_NEAR(*s.margin, (0.125 + 0) / 2, kTight);  // 0.25 - 0.125, and 0.5 - 0.5
  LayerCounts chosen_by_experts(0, 4, 1, false);
  add(chosen_by_experts, rows, {1, 2});
  EXPECT_FALSE(chosen_by_experts.finish().margin);
}

TEST(LayerCounts, DroppedPairsCountAsLoadButSendNoWeight) {
  LayerCounts layer(0, 4, 1, true);
  RoutedRows rows = routed({0, 1, 0, 1});
  rows.kept = {1, 0, 0, 0};
  rows.weights = {0.5f, 0, 0, 0};
  add(layer, rows, {1, 2});
  const LayerStats s = layer.finish();
  EXPECT_EQ(s.counts, (std::vector<int64_t>{2, 2, 0, 0}));
  EXPECT_NEAR(s.dropped, 0.75, kTight);
  EXPECT_NEAR(s.unrouted, 0.5, kTight);
  EXPECT_NEAR(s.mass[0], 1, kTight);
  EXPECT_EQ(s.dead, 2);
}

TEST(LayerCounts, SaturationIsTheShareOfTheChoices) {
  LayerCounts layer(0, 4, 1, true);
  const RoutedRows now = routed({0, 1, 2, 3}), before = routed({1, 0, 2, 1});
  add(layer, now, {1, 2}, 0, &before);
  EXPECT_NEAR(*layer.finish().saturation, 0.75, kTight);
}

// Thresholds may send a window nowhere.
TEST(LayerCounts, NothingChosenIsNoDivisionByZero) {
  LayerCounts layer(0, 4, 1, false);
  RoutedRows rows = routed({0, 1});
  rows.chosen = rows.kept = {0, 0};
  rows.scores = {0, 0, 0, 0};
  add(layer, rows, {1});
  const LayerStats s = layer.finish();
  EXPECT_EQ(s.max_vio, 0);
  EXPECT_EQ(s.load_entropy, 0);
  EXPECT_EQ(s.unrouted, 1);
  EXPECT_EQ(s.dead, 4);
  EXPECT_EQ(*s.router_entropy, 0);
  EXPECT_EQ(s.coactivation(0, 0), 0);
}

}  // namespace
}  // namespace moe::test::layer_counts_test
