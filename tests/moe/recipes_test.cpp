// The recipe table against numbers worked out in Python (tools/golden/routing.py), and what it refuses.
#include "moe/recipes.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "support/check.h"

namespace moe::test {
namespace {

constexpr double kTolerance = 1e-5;

void expect_list(const Tensor& got, const Json& want, const std::string& what) {
  for (int64_t n = 0; n < got.rows(); ++n)
    for (int64_t i = 0; i < got.cols(); ++i) {
      const Json& entry = want.at(static_cast<size_t>(n)).at(static_cast<size_t>(i));
      if (got.dtype == DType::i32) EXPECT_EQ(got.row<int32_t>(n)[i], entry.get<int>()) << what << " token " << n << " choice " << i;
      else EXPECT_NEAR(got.row<float>(n)[i], entry.get<double>(), kTolerance) << what << " token " << n << " choice " << i;
    }
}

RoutingSpec spec_of(const Json& given) {
  RoutingOptions options;
  options.recipe = given.at("recipe").get<std::string>();
  options.experts = static_cast<int64_t>(given.at("logits").at(0).size());
  options.top_k = given.at("top_k").get<int64_t>();
  if (given.contains("capacity_factor")) options.capacity_factor = given.at("capacity_factor").get<float>();
  options.noise = false;
  RoutingSpec spec = train_spec(options);
  if (given.contains("capacity_given")) {
    auto& buffer = std::get<BufferCapacity>(spec.capacity);
    buffer.rounding = BufferCapacity::Rounding::floor;
    buffer.minimum = given.at("capacity_given").get<int64_t>();
    buffer.factor = 1e-6f;
  }
  return spec;
}

TEST(Recipes, AgreeWithThePythonReference) {
  const Json file = read_json(MOE_TEST_DATA "/golden/routing.json");
  int routed = 0;
  for (const Json& given : file.at("cases")) {
    const std::string name = given.at("name").get<std::string>();
    if (!find_recipe(given.at("recipe").get<std::string>()).has_router()) continue;
    ++routed;
    const RoutingSpec spec = spec_of(given);
    moe::Run run(2);
    const auto tokens = static_cast<int64_t>(given.at("logits").size());
    Router::Saved saved;
    saved.logits = run.saved.alloc(DType::f32, {tokens, spec.experts});
    for (int64_t n = 0; n < tokens; ++n)
      for (int64_t e = 0; e < spec.experts; ++e) {
        double z = given.at("logits").at(static_cast<size_t>(n)).at(static_cast<size_t>(e)).get<double>();
        if (given.contains("noise")) z += given.at("noise").at(static_cast<size_t>(n)).at(static_cast<size_t>(e)).get<double>();
        saved.logits.row<float>(n)[e] = static_cast<float>(z);
      }
    const RoutingPlan plan = Router::decide(run, spec, saved);
    expect_list(saved.choice, given.at("experts"), name + " experts");
    expect_list(saved.weights, given.at("weights"), name + " weights");
    EXPECT_EQ(saved.dropped, given.at("dropped").get<int64_t>()) << name;
    EXPECT_EQ(plan.rows(), tokens * spec.top_k() - saved.dropped) << name;
    Tensor kept = run.saved.alloc_zeroed(DType::i32, {tokens, spec.top_k()});
    for (int32_t pair : plan.pair) kept.as<int32_t>()[pair] = 1;
    expect_list(kept, given.at("kept"), name + " kept");
    for (int64_t e = 0; e < spec.experts; ++e) EXPECT_EQ(saved.counts.as<int32_t>()[e], given.at("counts").at(static_cast<size_t>(e)).get<int>()) << name;
    const double balance = given.at("balance_canonical").get<double>(), z = given.at("z").get<double>();
    EXPECT_NEAR(saved.losses.balance, balance, kTolerance * balance) << name;
    EXPECT_NEAR(saved.losses.z, z, kTolerance * z) << name;
    if (!given.at("capacity").is_null())
      EXPECT_EQ(expert_capacity(std::get<BufferCapacity>(spec.capacity), tokens, spec.experts, spec.top_k()), given.at("capacity").get<int64_t>()) << name;
  }
  EXPECT_GE(routed, 10);
}

TEST(Recipes, ConvertCoefficientsToTheCanonicalForm) {
  // nanoMoE adds the losses of its layers up and its balanced loss is k; ours is 1 and a mean.
  const RoutingOptions nano = default_options(find_recipe("nanomoe"), 8, 2, 3);
  EXPECT_FLOAT_EQ(nano.balance_coef, 0.01f * 2 * 3);
  EXPECT_FLOAT_EQ(nano.z_coef, 0.001f * 3);
  const RoutingOptions olmoe = default_options(find_recipe("olmoe"), 64, 8, 16);
  EXPECT_FLOAT_EQ(olmoe.balance_coef, 0.01f);
  EXPECT_FLOAT_EQ(olmoe.z_coef, 0.001f);
}

TEST(Recipes, EvaluateWithoutDropsAndNoiseUnlessAsked) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router()) continue;
    const RoutingOptions options = default_options(recipe, recipe.default_experts, recipe.default_top_k, 1);
    const RoutingSpec spec = eval_spec(options);
    EXPECT_TRUE(std::holds_alternative<NoNoise>(spec.noise)) << recipe.name;
    EXPECT_TRUE(std::holds_alternative<Dropless>(spec.capacity)) << recipe.name;
    EXPECT_EQ(eval_spec(options, EvalRouting::as_trained).capacity.index(), train_spec(options).capacity.index()) << recipe.name;
    EXPECT_FALSE(recipe.source.empty() || recipe.formula.empty()) << recipe.name;
  }
}

std::string refusal(const RoutingOptions& options) {
  try {
    train_spec(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    return error.what();
  }
  return "";
}

TEST(Recipes, RefuseWhatHasNoMeaning) {
  EXPECT_NE(refusal({.recipe = "mixtral", .experts = 8, .top_k = 1}).find("no gradient"), std::string::npos);
  EXPECT_NE(refusal({.recipe = "nanomoe", .experts = 8, .top_k = 1}).find("no gradient"), std::string::npos);
  EXPECT_NE(refusal({.recipe = "olmoe", .experts = 8, .top_k = 1, .norm_topk_prob = true}).find("no gradient"), std::string::npos);
  EXPECT_EQ(refusal({.recipe = "olmoe", .experts = 8, .top_k = 1}), "");
  EXPECT_NE(refusal({.recipe = "olmoe", .experts = 4, .top_k = 5}).find("--top-k"), std::string::npos);
  EXPECT_NE(refusal({.recipe = "olmoe", .experts = 4, .top_k = 0}), "");
  EXPECT_NE(refusal({.recipe = "olmoe", .experts = 4, .top_k = 2, .capacity_factor = 1.25f}).find("never drops"), std::string::npos);
  EXPECT_NE(refusal({.recipe = "nanomoe", .experts = 4, .top_k = 2, .capacity_factor = 0.f}), "");
  EXPECT_NE(refusal({.recipe = "switch", .experts = 4, .top_k = 2}), "");
  EXPECT_NE(refusal({.recipe = "mixtral", .experts = 4, .top_k = 2, .norm_topk_prob = false}).find("another recipe"), std::string::npos);
  EXPECT_NE(refusal({.recipe = "olmo", .experts = 4, .top_k = 2}).find("olmoe"), std::string::npos);
}

TEST(Recipes, NanoMoeCapacityOfThePublishedRuns) {
  const auto capacity = [](float factor, int64_t tokens) {
    auto buffer = std::get<BufferCapacity>(find_recipe("nanomoe").train.capacity);
    buffer.factor = factor;
    return expert_capacity(buffer, tokens, 8, 2);
  };
  EXPECT_EQ(capacity(1.25f, 12 * 1024), 3840);
  EXPECT_EQ(capacity(2, 12 * 1024), 6144);
  EXPECT_EQ(capacity(1.25f, 100), 32);
  for (int64_t tokens : {1, 2, 4, 7, 8, 9}) EXPECT_EQ(capacity(2, tokens), 4) << tokens;
  EXPECT_EQ(capacity(2, 10), 6);
  EXPECT_EQ(capacity(2, 16), 8);
}

}  // namespace
}  // namespace moe::test
