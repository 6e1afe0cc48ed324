// The select stages against plain sorts: ties, masks, biases, expert choice by scope, thresholds,
// hashes; and the second-choice policies.
#include "moe/stages/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "core/error.h"
#include "ops/routing.h"
#include "support/check.h"

namespace moe::test::select_test {
namespace {

using Row = std::vector<int32_t>;

struct Selection {
  Tensor choice, selected, cutoff;

  Row experts(int64_t n) const {
    return {choice.row<int32_t>(n), choice.row<int32_t>(n) + choice.cols()};
  }
  // The experts that token n is sent to, in choice order.
  Row taken(int64_t n) const {
    Row out;
    for (int64_t i = 0; i < choice.cols(); ++i)
      if (selected.row<int32_t>(n)[i] != 0) out.push_back(choice.row<int32_t>(n)[i]);
    return out;
  }
};

// What a selection may read beside the scores.
struct Given {
  Batch batch = {};
  Tensor bias = {}, threshold = {};
};

Selection select(moe::Run& run, Tensor s, const SelectStage& stage, const Given& given = {},
                 int64_t hashed_experts = 0) {
  Routing r{.experts = s.empty() ? hashed_experts : s.cols(),
            .bias = given.bias,
            .threshold = given.threshold,
            .scores = s};
  const int64_t tokens = s.empty() ? given.batch.tokens() : s.rows();
  {
    const ArenaScope scope(run.saved);  // what a stage does not write shows
    const Tensor old =
        run.saved.alloc(DType::i32, {2 * tokens + 64, slots_per_token(stage, r.experts)});
    std::fill_n(old.as<int32_t>(), old.numel(), -7);
  }
  select_forward(run, r, {.batch = given.batch}, stage);
  return {r.choice, r.selected, r.cutoff};
}

// Normal draws rounded to quarters, so that ties abound, and zeros of both signs.
Tensor coarse(Arena& arena, int64_t rows, int64_t cols, uint64_t seed) {
  const Tensor t = draw(arena, DType::f32, {rows, cols}, seed);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.as<float>()[i] = std::nearbyint(t.as<float>()[i] * 4) / 4;
  return t;
}

// 0..n-1 by falling score, ties by rising index.
Row falling(const std::vector<double>& score) {
  Row order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  return order;
}
Row first_of(Row order, int64_t k) {
  order.resize(static_cast<size_t>(k));
  return order;
}
std::vector<double> row_of(Tensor s, int64_t n, Tensor bias = {}) {
  std::vector<double> out;
  for (int64_t e = 0; e < s.cols(); ++e)
    out.push_back(s.row<float>(n)[e] + (bias.empty() ? 0 : bias.as<float>()[e]));
  return out;
}

// ---- top k --------------------------------------------------------------------------------------
TEST(TopK, BreaksTiesByTheLowerIndex) {
  moe::Run run(1);
  float scores[] = {1, 3, 3, 3, 2, 3};
  EXPECT_EQ(select(run, Tensor(scores, DType::f32, {1, 6}), TopK{4}).experts(0), (Row{1, 2, 3, 5}));
  float zeros[] = {-0.0f, 0.0f, -0.0f, -INFINITY, INFINITY, -INFINITY, 0.0f};
  EXPECT_EQ(select(run, Tensor(zeros, DType::f32, {1, 7}), TopK{7}).experts(0),
            (Row{4, 0, 1, 2, 6, 3, 5}))
      << "zeros of both signs tie";
  float same[] = {0.5f, 0.5f, 0.5f};
  EXPECT_EQ(select(run, Tensor(same, DType::f32, {1, 3}), TopK{3}).experts(0), (Row{0, 1, 2}));
}

TEST(TopK, MatchesASortForEverySizeAndChoice) {
  moe::Run run(2);
  for (int64_t experts : {1, 2, 7, 8, 9, 16, 33, 64, 130, 256, 300, 1000}) {
    const Tensor s = coarse(run.saved, 130, experts, 3);
    for (int64_t k : {int64_t{1}, int64_t{2}, int64_t{8}, experts / 2, experts - 1, experts}) {
      if (k < 1 || k > experts) continue;
      const Selection got = select(run, s, TopK{k});
      for (int64_t n = 0; n < 130; ++n) {
        ASSERT_EQ(got.experts(n), first_of(falling(row_of(s, n)), k))
            << k << " of " << experts << ", token " << n;
        ASSERT_EQ(got.taken(n), got.experts(n));
      }
    }
  }
}

TEST(TopK, ATokenAlone) {
  moe::Run run(2);
  const Tensor s = draw(run.saved, DType::f32, {1, 5}, 3);
  EXPECT_EQ(select(run, s, TopK{5}).experts(0), falling(row_of(s, 0)));
}

TEST(TopK, RefusesNaNAndNamesTheFirstTokenForAnyThreads) {
  for (int threads : {1, 2}) {
    moe::Run run(threads);
    const Tensor s = draw(run.saved, DType::f32, {300, 12}, 3);
    s.row<float>(290)[0] = NAN;
    s.row<float>(77)[11] = NAN;
    for (const SelectStage& stage :
         {SelectStage{TopK{1}}, SelectStage{GroupedTopK{.k = 1, .groups = 3, .keep = 1}},
          SelectStage{ExpertChoice{}}, SelectStage{ThresholdChoice{}}}) {
      try {
        select(run, s, stage);
        FAIL() << "NaN went through stage " << stage.index();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("token 77 of 300 is not a number"),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

TEST(TopK, ABiasSelectsAndMayMakeScoresNegative) {
  moe::Run run(2);
  const Tensor s = coarse(run.saved, 200, 16, 3), bias = coarse(run.saved, 1, 16, 4);
  const Tensor flat = bias.reshape({16});
  const Selection got = select(run, s, TopK{4, SelectionBias{}}, {.bias = flat}),
                  plain = select(run, s, TopK{4});
  int64_t moved = 0;
  for (int64_t n = 0; n < 200; ++n) {
    ASSERT_EQ(got.experts(n), first_of(falling(row_of(s, n, flat)), 4));
    moved += got.experts(n) != plain.experts(n);
  }
  EXPECT_GT(moved, 100) << "the bias decided too little to prove anything";
}

// Worked example: sigmoid of z, b = [-0.2, 0, 0.1, 0].
TEST(TopK, GoldenDeepSeekV3) {
  moe::Run run(1);
  float z[] = {2, 1, 0, -1, 1.5f, 1.5f, 0.5f, 0, 3, -1, 2, 0, 0.2f, 0.1f, 0, 2.2f},
        b[] = {-0.2f, 0, 0.1f, 0};
  for (float& x : z) x = 1 / (1 + std::exp(-x));
  const Selection got = select(run, Tensor(z, DType::f32, {4, 4}), TopK{2, SelectionBias{}},
                               {.bias = Tensor(b, DType::f32, {4})});
  const Row want[] = {{1, 0}, {1, 2}, {2, 0}, {3, 2}};
  for (int64_t n = 0; n < 4; ++n) EXPECT_EQ(got.experts(n), want[n]);
}

// ---- groups -------------------------------------------------------------------------------------
Row grouped_twin(std::vector<double> score, const GroupedTopK& g) {
  const size_t size = score.size() / static_cast<size_t>(g.groups);
  std::vector<double> of_group;
  for (size_t i = 0; i < score.size(); i += size) {
    std::vector<double> members(score.begin() + static_cast<long>(i),
                                score.begin() + static_cast<long>(i + size));
    std::sort(members.rbegin(), members.rend());
    of_group.push_back(std::accumulate(members.begin(), members.begin() + g.group_top, 0.0));
  }
  const Row order = falling(of_group);
  for (size_t i = static_cast<size_t>(g.keep); i < order.size(); ++i)
    std::fill_n(score.begin() + static_cast<long>(static_cast<size_t>(order[i]) * size), size,
                -INFINITY);
  return first_of(falling(score), g.k);
}

TEST(GroupedTopK, MatchesTheTwinWithBiasAndTies) {
  moe::Run run(2);
  for (const GroupedTopK& g : {GroupedTopK{.k = 2, .groups = 4, .keep = 1, .group_top = 1},
                               GroupedTopK{.k = 3, .groups = 4, .keep = 2, .group_top = 2},
                               GroupedTopK{.k = 8, .groups = 8, .keep = 4, .group_top = 2},
                               GroupedTopK{.k = 6, .groups = 2, .keep = 1, .group_top = 12},
                               GroupedTopK{.k = 24, .groups = 8, .keep = 8, .group_top = 3},
                               GroupedTopK{.k = 3, .groups = 24, .keep = 3, .group_top = 1},
                               GroupedTopK{.k = 5, .groups = 1, .keep = 1, .group_top = 2}}) {
    for (const int64_t experts : {24, 240}) {
      const Tensor s = coarse(run.saved, 200, experts, 3),
                   bias = coarse(run.saved, 1, experts, 5).reshape({experts});
      const Selection got = select(run, s, g, {.bias = bias});
      for (int64_t n = 0; n < 200; ++n)
        ASSERT_EQ(got.experts(n), grouped_twin(row_of(s, n, bias), g)) << fmt::format(
            "{} of {}, top {}, {} experts, token {}", g.keep, g.groups, g.group_top, experts, n);
    }
  }
}

// All scores below 0: a mask of 0 would send the token into the group that was left out.
TEST(GroupedTopK, AMaskedGroupIsNeverChosen) {
  moe::Run run(1);
  // groups of 2; sums -0.9, -9.1, -0.5
  float scores[] = {-0.5f, -0.4f, -0.1f, -9.0f, -0.3f, -0.2f};
  const Tensor s(scores, DType::f32, {1, 6});
  EXPECT_EQ(select(run, s, GroupedTopK{.k = 2, .groups = 3, .keep = 1, .group_top = 2}).experts(0),
            (Row{5, 4}));
  EXPECT_EQ(select(run, s, GroupedTopK{.k = 2, .groups = 3, .keep = 1, .group_top = 1}).experts(0),
            (Row{2, 3}))
      << "by the largest: group 1 with -0.1";
  EXPECT_EQ(select(run, s, GroupedTopK{.k = 3, .groups = 3, .keep = 2, .group_top = 2}).experts(0),
            (Row{5, 4, 1}));
  float infinite[] = {-0.5f, -0.4f, 1.0f, -INFINITY};
  EXPECT_EQ(
      select(run, Tensor(infinite, DType::f32, {1, 4}), GroupedTopK{.k = 2, .groups = 2, .keep = 1})
          .experts(0),
      (Row{2, 3}));
}

TEST(GroupedTopK, RefusesAGroupScoreThatIsNoNumber) {
  moe::Run run(1);
  float scores[] = {INFINITY, -INFINITY, 1, 2};
  EXPECT_THROW(select(run, Tensor(scores, DType::f32, {1, 4}),
                      GroupedTopK{.k = 1, .groups = 2, .keep = 1, .group_top = 2}),
               Error);
}

// ---- expert choice ------------------------------------------------------------------------------
TEST(ExpertChoice, CountsOfTokens) {
  EXPECT_EQ(tokens_per_expert({.factor = 2}, 4, 4), 2);
  EXPECT_EQ(tokens_per_expert({.factor = 2}, 5, 4), 2);
  EXPECT_EQ(tokens_per_expert({.factor = 1}, 3, 64), 1) << "at least one";
  EXPECT_EQ(tokens_per_expert({.factor = 8}, 3, 4), 3) << "at most all";
  EXPECT_EQ(tokens_per_expert({.factor = 0.7f}, 10, 1), 7) << "0.7f is a little less than 0.7";
  EXPECT_EQ(tokens_per_expert({.factor = 1.1f}, 80, 8), 11);
}

// Worked example: two tokens an expert, by softmax scores.
TEST(ExpertChoice, GoldenZhou) {
  moe::Run run(1);
  float p[] = {.643914f, .236883f, .087144f, .032059f, .385950f, .385950f, .141983f, .086117f,
               .696387f, .012755f, .256187f, .034671f, .098886f, .089476f, .080961f, .730676f};
  const Selection got = select(run, Tensor(p, DType::f32, {4, 4}), ExpertChoice{.factor = 2});
  const Row taken[] = {{0, 1}, {1, 2, 3}, {0, 2}, {3}},
            order[] = {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 2, 3, 1}, {3, 0, 1, 2}};
  for (int64_t n = 0; n < 4; ++n) {
    EXPECT_EQ(got.taken(n), taken[n]);
    EXPECT_EQ(got.experts(n), order[n]);
  }
  const float cutoff[] = {.643914f, .236883f, .141983f, .086117f};
  for (int64_t e = 0; e < 4; ++e) EXPECT_EQ(got.cutoff.as<float>()[e], cutoff[e]);
}

struct Choosing {
  int64_t tokens, experts;
  float factor;
  Scope scope;
  std::vector<int64_t> scopes;  // where they begin and end
};

TEST(ExpertChoice, MatchesASortOfEveryColumnInEveryScope) {
  const std::vector<int64_t> sequences = {0, 40, 41, 130};
  Batch input;
  input.bounds = sequences;
  for (const Choosing& c :
       {Choosing{130, 8, 2, {}, {0, 130}}, Choosing{130, 8, 1, {Scope::Kind::sequence}, sequences},
        Choosing{130, 12, 2, {Scope::Kind::group, 48}, {0, 48, 96, 130}},
        Choosing{1, 4, 2, {}, {0, 1}}, Choosing{9, 1, 0.5f, {}, {0, 9}},
        Choosing{6, 3, 3, {}, {0, 6}}})
    for (int threads : {1, 2}) {
      moe::Run run(threads);
      const Tensor s = coarse(run.saved, c.tokens, c.experts, 7);
      const Selection got =
          select(run, s, ExpertChoice{.factor = c.factor, .scope = c.scope}, {.batch = input});
      for (int64_t e = 0; e < c.experts; ++e) {
        double cutoff = 0;
        for (size_t i = 0; i + 1 < c.scopes.size(); ++i) {
          std::vector<double> column;
          for (int64_t n = c.scopes[i]; n < c.scopes[i + 1]; ++n)
            column.push_back(s.row<float>(n)[e]);
          const Row order = falling(column);
          const auto take = static_cast<size_t>(
              std::max(1.0, std::floor(static_cast<double>(column.size()) * c.factor /
                                       static_cast<double>(c.experts))));
          for (size_t rank = 0; rank < order.size(); ++rank) {
            const Row taken = got.taken(c.scopes[i] + order[rank]);
            ASSERT_EQ(std::count(taken.begin(), taken.end(), static_cast<int32_t>(e)), rank < take)
                << "expert " << e << ", rank " << rank << " of scope " << i;
          }
          cutoff += column[static_cast<size_t>(order[take - 1])] /
                    static_cast<double>(c.scopes.size() - 1);
        }
        EXPECT_FLOAT_EQ(got.cutoff.as<float>()[e], static_cast<float>(cutoff));
      }
      for (int64_t n = 0; n < c.tokens; ++n) ASSERT_EQ(got.experts(n), falling(row_of(s, n)));
    }
}

// ---- threshold ----------------------------------------------------------------------------------
TEST(ThresholdChoice, TakesScoresThatReachTheThreshold) {
  moe::Run run(2);
  const Tensor s = coarse(run.saved, 200, 6, 7),
               threshold = coarse(run.saved, 1, 6, 8).reshape({6});
  const Selection got = select(run, s, ThresholdChoice{}, {.threshold = threshold});
  int64_t equal = 0;
  for (int64_t n = 0; n < 200; ++n) {
    Row want;
    ASSERT_EQ(got.experts(n), falling(row_of(s, n)));
    for (int32_t e : got.experts(n)) {
      if (s.row<float>(n)[e] >= threshold.as<float>()[e]) want.push_back(e);
      equal += s.row<float>(n)[e] == threshold.as<float>()[e];
    }
    ASSERT_EQ(got.taken(n), want);
    for (int64_t i = 0; i < 6; ++i)
      ASSERT_EQ(got.selected.row<int32_t>(n)[i] & ~1, 0) << "neither 0 nor 1";
  }
  EXPECT_GT(equal, 10) << "no score stood on its threshold";
  EXPECT_THROW(select(run, s, ThresholdChoice{}), Error);
}

// ---- hash ---------------------------------------------------------------------------------------
TEST(HashChoice, ModuloCountsOnFromTheId) {
  moe::Run run(1);
  const Row ids = {0, 5, 7, 1000003};
  Batch input;
  input.ids = ids;
  const Selection got =
      select(run, {}, HashChoice{.k = 3, .map = HashChoice::Map::modulo}, {.batch = input}, 8);
  const Row want[] = {{0, 1, 2}, {5, 6, 7}, {7, 0, 1}, {3, 4, 5}};
  for (int64_t n = 0; n < 4; ++n) {
    EXPECT_EQ(got.experts(n), want[n]);
    EXPECT_EQ(got.taken(n), want[n]);
  }
}

TEST(HashChoice, RandomDependsOnSeedAndIdAlone) {
  moe::Run one(1), two(2);
  Row ids(4000), shuffled(4000);
  for (int32_t i = 0; i < 4000; ++i) {
    ids[static_cast<size_t>(i)] = i;
    shuffled[static_cast<size_t>(i)] = (i * 7) % 4000;
  }
  Batch input, other;
  input.ids = ids;
  other.ids = shuffled;
  const int64_t experts = 5;
  const Selection got = select(one, {}, HashChoice{.k = 2, .seed = 9}, {.batch = input}, experts),
                  again = select(two, {}, HashChoice{.k = 2, .seed = 9}, {.batch = other}, experts),
                  all = select(two, {}, HashChoice{.k = 5, .seed = 9}, {.batch = input}, experts),
                  reseeded =
                      select(two, {}, HashChoice{.k = 2, .seed = 10}, {.batch = input}, experts);
  std::vector<int> counts(static_cast<size_t>(experts * experts));
  int64_t moved = 0;
  for (int64_t n = 0; n < 4000; ++n) {
    const Row pair = got.experts(n);
    ASSERT_NE(pair[0], pair[1]);
    ++counts[static_cast<size_t>(pair[0] * experts + pair[1])];
    ASSERT_EQ(again.experts(n), got.experts(shuffled[static_cast<size_t>(n)]));
    Row every = all.experts(n);
    ASSERT_EQ(first_of(every, 2), pair) << "a larger k goes on with the same permutation";
    std::sort(every.begin(), every.end());
    ASSERT_EQ(every, (Row{0, 1, 2, 3, 4}));
    moved += reseeded.experts(n) != pair;
  }
  EXPECT_GT(moved, 3600);  // 19 of 20 pairs differ by chance: 3800 expected
  for (int64_t a = 0; a < experts; ++a)
    for (int64_t b = 0; b < experts; ++b)
      if (a != b)
        EXPECT_NEAR(counts[static_cast<size_t>(a * experts + b)], 200, 5 * std::sqrt(200.0))
            << "pairs of experts are not equally likely";
}

TEST(HashChoice, RefusesIdsBelowZero) {
  moe::Run run(1);
  const Row ids = {1, -1};
  Batch input;
  input.ids = ids;
  EXPECT_THROW(select(run, {}, HashChoice{}, {.batch = input}, 4), Error);
}

// ---- all of them --------------------------------------------------------------------------------
TEST(Select, IsTheSameForAnyThreads) {
  moe::Run one(1), two(2);
  const Tensor s = coarse(one.saved, 301, 24, 9), bias = coarse(one.saved, 1, 24, 10).reshape({24});
  Row ids(301);
  std::iota(ids.begin(), ids.end(), 5);
  const std::vector<int64_t> bounds = {0, 100, 301};
  Batch input;
  input.ids = ids;
  input.bounds = bounds;
  for (const SelectStage& stage :
       {SelectStage{TopK{3}},
        SelectStage{GroupedTopK{.k = 3, .groups = 4, .keep = 2, .group_top = 2}},
        SelectStage{ExpertChoice{2, {Scope::Kind::sequence}}}, SelectStage{ThresholdChoice{}},
        SelectStage{HashChoice{.k = 3}}}) {
    const Given context{input, experts_choose(stage) ? Tensor{} : bias, bias};
    const Selection a = select(one, s, stage, context), b = select(two, s, stage, context);
    EXPECT_TRUE(same_bits(a.choice, b.choice)) << stage.index();
    EXPECT_TRUE(same_bits(a.selected, b.selected)) << stage.index();
    if (!a.cutoff.empty()) EXPECT_TRUE(same_bits(a.cutoff, b.cutoff));
  }
}

TEST(Select, WhatAStageSaysOfItself) {
  SelectStage stages[] = {TopK{3, SelectionBias{0.5f}}, GroupedTopK{.k = 3}, ExpertChoice{},
                          ThresholdChoice{}, HashChoice{}};
  const int64_t slots[] = {5, 5, 16, 16, 5};
  for (size_t i = 0; i < 5; ++i) {
    set_top_k(stages[i], 5);
    EXPECT_EQ(slots_per_token(stages[i], 16), slots[i]);
    EXPECT_EQ(experts_choose(stages[i]), i == 2 || i == 3);
    EXPECT_EQ(needs_logits(stages[i]), i != 4);
    EXPECT_EQ(selection_bias(stages[i]) != nullptr, i == 0);
  }
  EXPECT_EQ(selection_bias(stages[0])->rate, 0.5f);
  EXPECT_EQ(std::get<ExpertChoice>(stages[2]).factor, 5);
}

// ---- second choice ------------------------------------------------------------------------------
struct Second {
  moe::Run run{2};
  Tensor w = run.saved.alloc(DType::f32, {300, 2}),
         selected = run.saved.alloc(DType::i32, {300, 2});

  Second() {
    for (int64_t n = 0; n < 300; ++n) {
      w.row<float>(n)[0] = 1 - static_cast<float>(n) / 600;
      w.row<float>(n)[1] = static_cast<float>(n) / 600;
    }
  }
  Row kept(const SecondStage& stage, RngKey key = {}) {
    for (int64_t i = 0; i < 600; ++i) selected.as<int32_t>()[i] = 1;
    second_forward(run, selected, w, stage, key);
    Row out;
    for (int64_t n = 0; n < 300; ++n) {
      EXPECT_EQ(selected.row<int32_t>(n)[0], 1);
      out.push_back(selected.row<int32_t>(n)[1]);
    }
    return out;
  }
};

TEST(SecondChoice, KeepsAllByThresholdOrAgainstTheFirst) {
  Second s;
  const Row all = s.kept(KeepSecond{}), absolute = s.kept(ThresholdSecond{0.25f}),
            relative = s.kept(ThresholdSecond{0.2f, true});
  for (int n = 0; n < 300; ++n) {
    const size_t i = static_cast<size_t>(n);
    EXPECT_EQ(all[i], 1);
    EXPECT_EQ(absolute[i], n >= 150) << "0.25 itself is kept";
    if (n != 100) EXPECT_EQ(relative[i], n > 100) << "w2 >= w1 / 5, that is 1/6 of both";
  }
}

TEST(SecondChoice, RandomIsKeptInProportionToItsWeight) {
  Second s;
  const RngKey key = RngKey::from_seed(3);
  EXPECT_EQ(s.kept(RandomSecond{}), Row(300, 1)) << "nothing is drawn without a key";
  const Row got = s.kept(RandomSecond{}, key), again = s.kept(RandomSecond{}, key),
            other = s.kept(RandomSecond{}, RngKey::from_seed(4)),
            all_above = s.kept(RandomSecond{0.2f}, key);
  EXPECT_EQ(got, again);
  EXPECT_NE(got, other);
  EXPECT_EQ(got[0], 0) << "a weight of 0 is never kept";
  for (size_t n = 0; n < 300; ++n) {
    EXPECT_EQ(got[n], uniform(key.fold(1), n) * 0.5f < s.w.row<float>(static_cast<int64_t>(n))[1]);
    if (n > 120) EXPECT_EQ(all_above[n], 1) << "from `full` on always";
  }
  EXPECT_NEAR(std::accumulate(got.begin(), got.end(), 0), 150, 5 * std::sqrt(300 / 6.0));
}

TEST(NearBest, AnInfiniteScoreTakesNoExpertTwice) {
  moe::Run run(1);
  const Tensor s = draw(run.saved, DType::f32, {8, 6}, 1),
               choice = run.saved.alloc(DType::i32, {8, 3});
  for (int64_t n = 0; n < s.rows(); ++n)
    s.row<float>(n)[n % 6] = std::numeric_limits<float>::infinity();
  ops::draw_near_best(run, choice, s, 0.1f, RngKey::from_seed(5));
  for (int64_t n = 0; n < s.rows(); ++n) {
    const int32_t* e = choice.row<int32_t>(n);
    EXPECT_EQ(std::set<int32_t>(e, e + 3).size(), 3u) << n;
  }
}

TEST(SecondChoice, NeedsTwoChoices) {
  moe::Run run(1);
  const Tensor w = draw(run.saved, DType::f32, {3, 3}, 1),
               selected = run.saved.alloc_zeroed(DType::i32, {3, 3});
  EXPECT_THROW(second_forward(run, selected, w, ThresholdSecond{}, {}), Error);
  EXPECT_NO_THROW(second_forward(run, selected, w, KeepSecond{}, {}));
}

}  // namespace
}  // namespace moe::test::select_test
