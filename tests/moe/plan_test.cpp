// Laws of the plan, of dispatch and of combine.
#include "moe/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "support/check.h"

namespace moe::test::plan_test {
namespace {

struct Drawn {
  moe::Run run{2};
  Tensor choice, kept, weight;
  RoutingPlan plan;
  int64_t tokens, experts, k;

  Drawn(int64_t n, int64_t e, int64_t chosen, uint64_t seed) : tokens(n), experts(e), k(chosen) {
    const RngKey key = RngKey::from_seed(seed);
    choice = run.saved.alloc(DType::i32, {n, chosen});
    kept = run.saved.alloc(DType::i32, {n, chosen});
    weight = draw(run.saved, DType::f32, {n, chosen}, seed);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t i = 0; i < chosen; ++i) {
        choice.row<int32_t>(t)[i] =
            static_cast<int32_t>((static_cast<int64_t>(uniform_index(key, static_cast<uint64_t>(t),
                                                                     static_cast<uint64_t>(e))) +
                                  i) %
                                 e);
        kept.row<int32_t>(t)[i] =
            uniform(key.fold(1), static_cast<uint64_t>(t * chosen + i)) < 0.8f;
      }
    plan = ops::make_plan(run, choice, kept, weight, e);
  }
};

TEST(Plan, HoldsEveryKeptPairOnceSortedByExpertThenToken) {
  for (uint64_t seed : {1u, 2u, 3u}) {
    Drawn d(37, 5, 3, seed);
    ASSERT_EQ(d.plan.offsets.size(), 6u);
    EXPECT_EQ(d.plan.offsets.front(), 0);
    EXPECT_EQ(d.plan.offsets.back(), d.plan.rows());
    std::set<int32_t> pairs;
    for (size_t e = 0; e < 5; ++e) {
      ASSERT_LE(d.plan.offsets[e], d.plan.offsets[e + 1]);
      for (int64_t r = d.plan.offsets[e]; r < d.plan.offsets[e + 1]; ++r) {
        const int32_t pair = d.plan.pair[static_cast<size_t>(r)];
        pairs.insert(pair);
        EXPECT_EQ(d.choice.as<int32_t>()[pair], static_cast<int32_t>(e));
        EXPECT_EQ(d.kept.as<int32_t>()[pair], 1);
        EXPECT_EQ(d.plan.token[static_cast<size_t>(r)], pair / 3);
        EXPECT_EQ(d.plan.weight.as<float>()[r], d.weight.as<float>()[pair]);
        if (r > d.plan.offsets[e])
          EXPECT_LE(d.plan.token[static_cast<size_t>(r - 1)], d.plan.token[static_cast<size_t>(r)]);
      }
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < d.kept.numel(); ++i) kept += d.kept.as<int32_t>()[i];
    EXPECT_EQ(static_cast<int64_t>(pairs.size()), kept);
    EXPECT_EQ(d.plan.rows(), kept);
    for (size_t n = 0; n < 37; ++n)
      for (int32_t i = d.plan.bounds[n] + 1; i < d.plan.bounds[n + 1]; ++i)
        EXPECT_LT(d.plan.pair[static_cast<size_t>(d.plan.row[static_cast<size_t>(i) - 1])],
                  d.plan.pair[static_cast<size_t>(d.plan.row[static_cast<size_t>(i)])])
            << "choice order";
  }
}

// What the plan says, by a loop of its own: pairs fall into one list an expert as they come.
void expect_plan(const RoutingPlan& plan, const Drawn& d, bool any_kept) {
  std::vector<std::vector<int32_t>> pairs(static_cast<size_t>(d.experts));
  for (int64_t p = 0; p < d.choice.numel(); ++p)
    if (!any_kept || d.kept.as<int32_t>()[p] != 0)
      pairs[static_cast<size_t>(d.choice.as<int32_t>()[p])].push_back(static_cast<int32_t>(p));
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> pair, token, row(static_cast<size_t>(d.choice.numel()), -1);
  std::vector<float> weight;
  for (const auto& of_expert : pairs) {
    for (const int32_t p : of_expert) {
      row[static_cast<size_t>(p)] = static_cast<int32_t>(pair.size());
      pair.push_back(p);
      token.push_back(static_cast<int32_t>(p / d.k));
      weight.push_back(d.weight.as<float>()[p]);
    }
    offsets.push_back(static_cast<int64_t>(pair.size()));
  }
  std::vector<int32_t> bounds = {0}, rows;
  for (int64_t n = 0; n < d.tokens; ++n) {
    for (int64_t p = n * d.k; p < (n + 1) * d.k; ++p)
      if (row[static_cast<size_t>(p)] >= 0) rows.push_back(row[static_cast<size_t>(p)]);
    bounds.push_back(static_cast<int32_t>(rows.size()));
  }
  const auto expect_list = [](auto got, const auto& want, const char* what) {
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end())) << what;
  };
  ASSERT_EQ(plan.weight.numel(), static_cast<int64_t>(weight.size()));
  expect_list(plan.offsets, offsets, "offsets");
  expect_list(plan.bounds, bounds, "bounds");
  expect_list(plan.pair, pair, "pairs");
  expect_list(plan.token, token, "tokens");
  expect_list(plan.row, rows, "rows");
  expect_list(std::span(plan.weight.as<float>(), weight.size()), weight, "weights");
}

// One token, one warp's pairs and one more, one block's and one more, many blocks, and more experts
// than threads.
TEST(Plan, IsThatOfALoopOfAnySize) {
  struct Size {
    int64_t tokens, experts, k;
  };
  for (const Size& size :
       {Size{0, 4, 2}, Size{1, 1, 1}, Size{1, 64, 8}, Size{1, 5, 5}, Size{1, 1024, 10},
        Size{16, 8, 8}, Size{43, 3, 3}, Size{512, 64, 8}, Size{513, 64, 8}, Size{176, 1024, 8},
        Size{177, 1024, 8}, Size{4097, 2, 1}, Size{700, 3000, 7}, Size{4800, 6001, 8},
        Size{1, 11999, 5000}}) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {}", size.tokens, size.k, size.experts));
    const Drawn d(size.tokens, size.experts, size.k, 11);
    expect_plan(d.plan, d, true);
    moe::Run run(2);
    expect_plan(ops::make_plan(run, d.choice, {}, d.weight, size.experts), d, false);
    std::fill_n(d.kept.as<int32_t>(), d.kept.numel(), 0);
    expect_plan(ops::make_plan(run, d.choice, d.kept, d.weight, size.experts), d, true);
  }
}

TEST(Plan, PairsAreCountedForAnySize) {
  for (const int64_t tokens : {0, 1, 300, 2048, 2049}) {
    const Drawn d(tokens, 70, 3, 5);
    for (const bool all : {true, false}) {
      std::vector<int32_t> want(70);
      for (int64_t n = 0; n < tokens; ++n)
        for (int64_t i = 0; i < 2; ++i)
          want[static_cast<size_t>(d.choice.row<int32_t>(n)[i])] +=
              all || d.kept.row<int32_t>(n)[i] != 0;
      moe::Run run(2);
      const Tensor counts = run.saved.alloc(DType::i32, {70});
      std::fill_n(counts.as<int32_t>(), 70, -7);
      ops::count_pairs(run, counts, d.choice, all ? Tensor() : d.kept, 2);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), counts.as<int32_t>())) << tokens;
      ops::count_pairs_acc(run, counts, d.choice, all ? Tensor() : d.kept, 2);
      for (int32_t& count : want) count *= 2;
      EXPECT_TRUE(std::equal(want.begin(), want.end(), counts.as<int32_t>())) << tokens;
    }
  }
}

TEST(Plan, DispatchAndCombineAreAdjoint) {
  Drawn d(29, 4, 2, 7);
  const Tensor x = draw(d.run.saved, DType::f32, {29, 12}, 8),
               r = draw(d.run.saved, DType::f32, {d.plan.rows(), 12}, 9),
               y = d.run.saved.alloc(DType::f32, {29, 12});
  const Rows rows = dispatch(x, d.plan);
  ASSERT_EQ(rows.x.rows(), d.plan.rows());
  combine(d.run, y, r, d.plan);
  double left = 0, right = 0;
  for (int64_t i = 0; i < r.rows(); ++i)
    for (int64_t c = 0; c < r.cols(); ++c)
      left += static_cast<double>(rows.x.x.row<float>(rows.x.row[static_cast<size_t>(i)])[c]) *
              r.row<float>(i)[c];
  for (int64_t i = 0; i < x.numel(); ++i)
    right += static_cast<double>(x.as<float>()[i]) * y.as<float>()[i];
  EXPECT_NEAR(left, right, 1e-4 * std::abs(left));
  EXPECT_GT(std::abs(left), 1e-3);
}

TEST(Plan, ATokenWithoutRowsCombinesToZero) {
  moe::Run run(1);
  int32_t choice[] = {0, 1}, kept[] = {1, 0};
  float weight[] = {1, 1};
  const RoutingPlan plan =
      ops::make_plan(run, Tensor(choice, DType::i32, {2, 1}), Tensor(kept, DType::i32, {2, 1}),
                     Tensor(weight, DType::f32, {2, 1}), 2);
  ASSERT_EQ(plan.rows(), 1);
  const Tensor r = draw(run.saved, DType::f32, {1, 3}, 1),
               y = draw(run.saved, DType::f32, {2, 3}, 2);
  combine(run, y, r, plan);
  EXPECT_EQ(values(y.slice_rows(0, 1)), values(r));
  EXPECT_EQ(values(y.slice_rows(1, 2)), std::vector<double>({0, 0, 0}));
}

}  // namespace
}  // namespace moe::test::plan_test
