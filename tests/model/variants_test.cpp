// Counting sets of experts against published figures and Pascal's triangle, and DeepSeekMoE's
// figure 2 on models whose answer is known.
#include "model/variants.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "support/published.h"

namespace moe::variants_test {
namespace {

// DeepSeekMoE, arXiv 2401.06066, section 3.1: 16 experts top-2 against 64 top-8. OLMoE, arXiv
// 2409.02060, section 4.1.2-3: 32 top-4 and 31 top-3.
TEST(Combinations, PublishedFigures) {
  EXPECT_EQ(combinations(16, 2), "120");
  EXPECT_EQ(combinations(64, 8), "4426165368");
  EXPECT_EQ(combinations(32, 4), "35960");
  EXPECT_EQ(combinations(31, 3), "4495");
  EXPECT_EQ(combinations(8, 2), "28");
  EXPECT_EQ(combinations(256, 8), "409663695276000");
  EXPECT_NEAR(log2_combinations(256, 8), 48.54, 0.005);
}

// n choose k = sum of the two above it, added as decimal strings.
TEST(Combinations, PascalsTriangle) {
  const auto add = [](std::string a, std::string b) {
    if (a.size() < b.size()) std::swap(a, b);
    b.insert(0, a.size() - b.size(), '0');
    int carry = 0;
    for (size_t i = a.size(); i-- > 0;) {
      const int digit = a[i] - '0' + b[i] - '0' + carry;
      a[i] = static_cast<char>('0' + digit % 10);
      carry = digit / 10;
    }
    return carry > 0 ? "1" + a : a;
  };
  std::vector<std::string> row = {"1"};
  for (int64_t n = 1; n <= 150; ++n) {
    std::vector<std::string> next = {"1"};
    for (size_t k = 1; k < row.size(); ++k) next.push_back(add(row[k - 1], row[k]));
    next.push_back("1");
    row = std::move(next);
    for (size_t k = 0; k < row.size(); ++k) {
      const auto chosen = static_cast<int64_t>(k);
      ASSERT_EQ(combinations(n, chosen), row[k]) << n << " " << k;
      ASSERT_NEAR(log2_combinations(n, chosen), std::log2(std::stod(row[k])),
                  1e-9 * static_cast<double>(n))
          << n << " " << k;
    }
  }
  EXPECT_GT(row[75].size(), 40u);
}

TEST(Combinations, EdgesAndLimits) {
  EXPECT_EQ(combinations(1, 1), "1");
  EXPECT_EQ(combinations(5, 0), "1");
  EXPECT_EQ(combinations(1000000, 2), "499999500000");
  EXPECT_EQ(combinations(1000000, 999998), "499999500000");
  EXPECT_EQ(combinations(100000, 50000), "");
  // Stirling
  EXPECT_NEAR(log2_combinations(100000, 50000), 100000 - 0.5 * std::log2(M_PI * 50000), 1e-3);
  EXPECT_THROW(combinations(3, 4), Error);
  EXPECT_THROW(combinations(3, -1), Error);
}

void expect_equal_but_for_the_router(const std::vector<Variant>& variants) {
  for (const Variant& v : variants) {
    EXPECT_EQ(v.params.total() - v.params[Part::router],
              variants[0].params.total() - variants[0].params[Part::router])
        << v.name;
    EXPECT_EQ(v.params.active() - v.params[Part::router],
              variants[0].params.active() - variants[0].params[Part::router])
        << v.name;
  }
}

TEST(Variants, FigureTwoOfOlmoe) {
  const std::vector<Variant> v = fine_grained_variants(test::olmoe_7b());
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[0].experts, 16);
  EXPECT_EQ(v[0].top_k, 2);
  EXPECT_EQ(v[0].expert_width, 4096);
  EXPECT_EQ(v[1].experts, 64);
  EXPECT_EQ(v[1].top_k, 8);
  EXPECT_TRUE(v[1].is_model && !v[0].is_model && !v[2].is_model);
  EXPECT_EQ(v[1].params.total(), 6919161856);
  EXPECT_EQ(v[1].params.active(), 1282017280);
  EXPECT_EQ(v[2].experts, 63);
  EXPECT_EQ(v[2].top_k, 7);
  EXPECT_EQ(v[2].shared_experts, 1);
  EXPECT_EQ(v[0].params.total(), 6919161856 - 16 * 2048 * 48);
  expect_equal_but_for_the_router(v);
}

TEST(Variants, SharedExpertsOfTheModelCount) {
  ModelConfig c = test::olmoe_7b();
  c.routing.recipe = "deepseek-moe";
  c.routing.experts = 62;
  c.routing.top_k = 6;
  c.shared_experts = 2;
  c.shared_width = 1024;
  const std::vector<Variant> v = fine_grained_variants(c);
  ASSERT_EQ(v.size(), 3u);
  EXPECT_EQ(v[0].experts, 16);
  EXPECT_EQ(v[1].experts, 64);
  EXPECT_TRUE(v[2].is_model);
  EXPECT_EQ(v[2].experts, 62);
  EXPECT_EQ(v[2].params.total(), count_params(c).total());
  EXPECT_EQ(v[2].params.active(), count_params(c).active());
  expect_equal_but_for_the_router(v);
}

TEST(Variants, ACoarseModelIsTheConventionalOne) {
  ModelConfig c = test::olmoe_7b();
  c.routing.experts = 8;
  c.routing.top_k = 2;
  const std::vector<Variant> v = fine_grained_variants(c);
  ASSERT_EQ(v.size(), 3u);
  EXPECT_TRUE(v[0].is_model);
  EXPECT_EQ(v[1].experts, 32);
  EXPECT_EQ(v[1].top_k, 8);
  EXPECT_EQ(v[1].expert_width, 256);
  expect_equal_but_for_the_router(v);
}

TEST(Variants, AModelThatIsNoneOfThemComesFirst) {
  ModelConfig c = test::olmoe_7b();
  c.routing.experts = 8;
  c.routing.top_k = 2;
  c.shared_experts = 1;
  c.shared_width = 1024;
  const std::vector<Variant> v = fine_grained_variants(c);
  ASSERT_EQ(v.size(), 4u);
  EXPECT_TRUE(v[0].is_model);
  EXPECT_EQ(v[0].params.total(), count_params(c).total());
  expect_equal_but_for_the_router(v);
}

TEST(Variants, NothingToCompare) {
  ModelConfig c = test::olmoe_7b();
  c.routing.recipe = "dense";
  EXPECT_TRUE(fine_grained_variants(c).empty());
  c.routing.recipe = "expert-choice";
  EXPECT_TRUE(fine_grained_variants(c).empty());
  c.routing.recipe = "hash";
  EXPECT_TRUE(fine_grained_variants(c).empty());
}

TEST(DenseTwins, EqualInWhatTheyAreNamedFor) {
  const ModelConfig c = test::olmoe_7b();
  const ModelCost own = count_cost(c, c.context);
  const DenseTwin flops = dense_of_equal_flops(c, c.context),
                  params = dense_of_equal_params(c, c.context);
  EXPECT_EQ(flops.ffn_width, 8192);
  EXPECT_EQ(flops.params.total(), own.params.active() - own.params[Part::router]);
  EXPECT_EQ(flops.flops.forward(), own.flops.forward() - own.flops.router);
  EXPECT_EQ(params.ffn_width, 65536);
  EXPECT_EQ(params.params.total(), own.params.total() - own.params[Part::router]);
  EXPECT_EQ(params.flops.forward() - own.flops.forward() + own.flops.router, 7 * own.flops.experts);
}

}  // namespace
}  // namespace moe::variants_test
