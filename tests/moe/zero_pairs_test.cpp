// Zero experts in the parts of a router: what they weigh, that they are no rows and drop nothing,
// how their bias moves, and with what they do not go together.
#include "core/error.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"

namespace moe::test::zero_pairs_test {
namespace {

constexpr int64_t kTokens = 150, kSlots = 3, kExperts = 5, kZero = 2;

class ZeroPairs : public testing::TestWithParam<int> {
 protected:
  moe::Run run{GetParam()};
  Arena memory;
  Tensor choice = memory.alloc(DType::i32, {kTokens, kSlots});
  Tensor kept = memory.alloc(DType::i32, {kTokens, kSlots});
  Tensor w = draw(memory, DType::f32, {kTokens, kSlots}, 1);

  void SetUp() override {
    for (int64_t n = 0; n < kTokens; ++n)
      for (int64_t i = 0; i < kSlots; ++i) {
        choice.row<int32_t>(n)[i] = static_cast<int32_t>((n + 3 * i) % (kExperts + kZero));
        kept.row<int32_t>(n)[i] = (n * kSlots + i) % 4 != 0;
      }
  }
  bool is_zero(int64_t n, int64_t i) const { return choice.row<int32_t>(n)[i] >= kExperts; }
};

TEST_P(ZeroPairs, WeighTogetherAndAreNoRows) {
  const Tensor zero = memory.alloc(DType::f32, {kTokens}),
               rows = memory.alloc(DType::i32, {kTokens, kSlots});
  ops::weigh_zero_experts_forward(run, zero, rows, choice, kept, w, kExperts);
  const ops::RoutingPlan plan = ops::make_plan(run, choice, rows, w, kExperts);
  ASSERT_EQ(plan.offsets.size(), static_cast<size_t>(kExperts) + 1);
  int64_t computed = 0, passed = 0;
  for (int64_t n = 0; n < kTokens; ++n) {
    double sum = 0;
    for (int64_t i = 0; i < kSlots; ++i) {
      const bool stays = kept.row<int32_t>(n)[i] != 0;
      EXPECT_EQ(rows.row<int32_t>(n)[i], stays && !is_zero(n, i)) << n << " " << i;
      computed += stays && !is_zero(n, i);
      passed += stays && is_zero(n, i);
      if (stays && is_zero(n, i)) sum += static_cast<double>(w.row<float>(n)[i]);
    }
    EXPECT_NEAR(zero.as<float>()[n], sum, 1e-6) << n;
  }
  EXPECT_GT(passed, 50);
  EXPECT_EQ(plan.rows(), computed);
  for (const int32_t pair : plan.pair) EXPECT_FALSE(is_zero(pair / kSlots, pair % kSlots));
}

TEST_P(ZeroPairs, GradientsGoToThemAlone) {
  const Tensor dzero = draw(memory, DType::f32, {kTokens}, 2),
               dw = draw(memory, DType::f32, {kTokens, kSlots}, 3);
  const std::vector<double> before = values(dw);
  ops::weigh_zero_experts_backward_acc(run, dw, dzero, choice, kept, kExperts);
  for (int64_t n = 0; n < kTokens; ++n)
    for (int64_t i = 0; i < kSlots; ++i) {
      const bool gets = is_zero(n, i) && kept.row<int32_t>(n)[i] != 0;
      EXPECT_EQ(dw.row<float>(n)[i],
                static_cast<float>(before[static_cast<size_t>(n * kSlots + i)]) +
                    (gets ? dzero.as<float>()[n] : 0.0f))
          << n << " " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Threads, ZeroPairs, testing::Values(1, 3));

TEST(ZeroExpertsOf, CapacityDropsNone) {
  moe::Run run(1);
  const int64_t tokens = 12;
  const Tensor choice = run.saved.alloc(DType::i32, {tokens, 1}),
               selected = run.saved.alloc(DType::i32, {tokens, 1}),
               kept = run.saved.alloc(DType::i32, {tokens, 1}),
               w = draw(run.saved, DType::f32, {tokens, 1}, 1);
  for (int64_t n = 0; n < tokens; ++n) {
    choice.as<int32_t>()[n] = n % 2 == 0 ? 0 : 2;
    selected.as<int32_t>()[n] = 1;
  }
  using Order = BufferCapacity::Order;
  for (const Order order : {Order::choice_major, Order::token_major, Order::by_weight,
                            Order::batch_priority, Order::random}) {
    // two places an expert, of three: the third is a zero one
    const BufferCapacity two{.factor = 0.5f, .minimum = 0, .order = order};
    EXPECT_EQ(capacity_forward(run, kept, choice, selected, w, {}, 3, two, {}, 2), 4);
    EXPECT_EQ(capacity_forward(run, kept, choice, selected, w, {}, 3, two, {}), 8);
  }
}

RoutingOptions with_zero(const char* recipe) {
  RoutingOptions o = default_options(find_recipe(recipe), 8, 2, 1);
  o.zero_experts = 4;
  return o;
}

TEST(ZeroExpertsOf, TheSpecAreItsLast) {
  const RoutingSpec spec = train_spec(with_zero("olmoe"));
  EXPECT_EQ(spec.experts, 12);
  EXPECT_EQ(spec.zero_experts, 4);
  EXPECT_EQ(spec.with_weights(), 8);
  EXPECT_EQ(eval_spec(with_zero("olmoe")).with_weights(), 8);
  // As many choices as there are experts of both kinds.
  RoutingOptions all = with_zero("olmoe");
  all.top_k = 12;
  EXPECT_EQ(train_spec(all).slots(), 12);
}

// (arXiv 2509.01322, section 2.1): the bias of experts with weights moves towards the load of an
// even choice among all, that of zero experts stays.
TEST(ZeroExpertsOf, EndStepKeepTheirBias) {
  RoutingOptions o = with_zero("deepseek-v3");
  o.expert_groups = o.groups_kept = 1;
  const RoutingSpec spec = train_spec(o);
  moe::Run run(1);
  Router router;
  router.bias.value = run.saved.alloc_zeroed(DType::f32, {12});
  router.end_step(run, spec, std::vector<int64_t>{0, 1, 2, 3, 2, 2, 2, 4, 8, 0, 0, 0}, {});
  const double rate = static_cast<double>(selection_bias(spec.select)->rate);
  std::vector<double> want = {rate, rate, 0, -rate, 0, 0, 0, -rate, 0, 0, 0, 0};
  EXPECT_EQ(values(router.bias.value), want);
}

void expect_refused(RoutingOptions o, const std::string& word) {
  try {
    train_spec(o);
    ADD_FAILURE() << o.recipe << " was accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

TEST(ZeroExpertsOf, WhatHasNoMeaningIsRefused) {
  expect_refused(with_zero("expert-choice"), "computes nothing");
  RoutingOptions o = with_zero("deepseek-v3");
  o.expert_groups = 4;
  o.groups_kept = 2;
  expect_refused(o, "groups stand for devices");
  o = with_zero("olmoe");
  o.zero_experts = -1;
  expect_refused(o, "at least 0");
  o = with_zero("olmoe");
  o.experts = 0;
  expect_refused(o, "at least one expert");
  o = with_zero("custom");
  o.stages = R"({"losses": {"device": {"devices": 2}}})";
  expect_refused(o, "no part");
}

}  // namespace
}  // namespace moe::test::zero_pairs_test
