// Zero experts, which give a token back as it is: whole models that route to them against the
// scalar twin, whatever the recipe, and where no token takes any other expert.
#include "core/error.h"
#include "model/model.h"
#include "support/model_check.h"
#include "support/routings.h"

namespace moe::test::zero_experts_test {
namespace {

constexpr int64_t kExperts = 3, kZero = 2;

// Of recipes that cannot have zero experts nothing.
std::optional<ModelConfig> with_zero_experts(const Recipe& recipe) {
  ModelConfig c = small();
  c.routing = small_routing(recipe, kExperts, c.layers);
  c.routing.zero_experts = kZero;
  if (c.routing.expert_groups) c.routing.expert_groups = c.routing.groups_kept = 1;
  try {
    weigh_losses(c.routing);
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("zero"), std::string::npos) << e.what();
    return std::nullopt;
  }
  return c;
}

bool takes_zero_experts(const Recipe& recipe) {
  return recipe.has_router() && !experts_choose(recipe.train.select);
}

bool draws(const RoutingSpec& spec) {
  return !std::holds_alternative<NoNoise>(spec.noise) ||
         std::holds_alternative<RandomSecond>(spec.second);
}

TEST(ZeroExperts, LossAndEveryGradientOfEveryRecipeMatchTheTwin) {
  int routed = 0;
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router()) continue;
    const std::optional<ModelConfig> c = with_zero_experts(recipe);
    EXPECT_EQ(c.has_value(), takes_zero_experts(recipe)) << recipe.name;
    if (!c) continue;
    Case item{.name = fmt::format("{} with zero experts", recipe.name), .config = *c};
    expect_gradients(item);
    ++routed;
    if (!draws(spec_of(item))) continue;
    item.random = true;
    expect_gradients(item);
  }
  EXPECT_GT(routed, 10);
}

TEST(ZeroExperts, HaveRoomWithoutEnd) {
  for (const char* name : {"switch", "nanomoe", "gshard"}) {
    Case item{.name = fmt::format("{} with zero experts, dropping", name),
              .config = *with_zero_experts(find_recipe(name)),
              .drops = true};
    item.config.routing.capacity_factor = 0.5f;
    expect_gradients(item);
  }
}

TEST(ZeroExperts, BesideSharedExpertsNormsOfBranchesAndWeighedInputs) {
  Case item{.name = "shared experts, averaged", .config = *with_zero_experts(find_recipe("olmoe"))};
  item.config.shared_experts = 1;
  item.config.shared_width = 5;
  item.config.shared_average = true;
  expect_gradients(item);
  item.name = "a gate of shared experts, weights of inputs";
  item.config.shared_average = false;
  item.config.shared_gate = item.config.weigh_inputs = true;
  expect_gradients(item);
  item.name = "branches with norms";
  item.config.shared_gate = item.config.weigh_inputs = false;
  item.config.branch_norms = true;
  item.config.norm_placement = NormPlacement::both;
  expect_gradients(item);
  item.name = "choices that no router made";
  item.config.branch_norms = false;
  item.config.norm_placement = NormPlacement::pre;
  item.drops = item.replayed = true;
  expect_gradients(item);
}

// A bias of the choice sends every token to zero experts alone: no expert has a row.
TEST(ZeroExperts, MayTakeAllTokens) {
  const Case item{.name = "all tokens to zero experts",
                  .config = *with_zero_experts(find_recipe("deepseek-v3"))};
  Model model(item.config);
  model.enable_grads();
  const RoutingSpec spec = spec_of(item);
  ASSERT_EQ(spec.slots(), kZero);
  draw_params(model, 3);
  for (Param* p : model.params())
    if (p->kind == ParamKind::selection_bias) {
      for (int64_t e = 0; e < p->value.numel(); ++e)
        p->value.as<float>()[e] = e < kExperts ? -10.0f : 0.1f * static_cast<float>(e);
      p->touched();
    }
  const TwinInput in = input(item, 3);
  moe::Run run(2);
  const Trained got = train_once(model, run, in, spec);
  const auto params = twin_params<double>(model);
  const TwinOutput<double> want =
      TwinModel<double>(item.config, spec, params).run(in, item.config.routing.coef);
  expect_same_routing(got, want, item.name);
  expect_losses(got, want, item);
  for (const LayerRouting& layer : got.routing)
    for (int64_t e = 0; e < kExperts; ++e)
      EXPECT_EQ(layer.counts[static_cast<size_t>(e)], 0) << "expert " << e;
  for (const auto& [name, gradient] : twin_gradients(model, spec, in)) {
    const Tensor& grad = param_named(model, name)->grad;
    if (norm(gradient) == 0) EXPECT_EQ(norm(values(grad)), 0) << name;
    else expect_near(grad, gradient, kTwinF32, "gradient of " + name);
  }
  EXPECT_GT(norm(values(param_named(model, "layers.0.ffn.router.weight")->grad)), 0);
}

TEST(ZeroExperts, RecomputingGivesTheSameBitsAsKeeping) {
  const Case item{
      .name = "recomputed", .config = *with_zero_experts(find_recipe("nanomoe")), .random = true};
  Model model(item.config);
  model.enable_grads();
  const RoutingSpec spec = spec_of(item);
  draw_params(model, 5);
  const TwinInput in = input(item, 5);
  moe::Run run(2);
  std::vector<std::vector<double>> gradients[2];
  for (const Keep keep : {Keep::all, Keep::inputs}) {
    train_once(model, run, in, spec, keep);
    for (const Param* p : model.params())
      gradients[keep == Keep::inputs].push_back(values(p->grad));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

// In bf16 what is given back is rounded as an expert's hidden row is.
TEST(ZeroExperts, InBf16) {
  const Case item{.name = "bf16", .config = *with_zero_experts(find_recipe("olmoe"))};
  Model model(item.config);
  model.enable_grads();
  const RoutingSpec spec = spec_of(item);
  const uint64_t seed = draw_model(model, item, spec);
  ASSERT_GT(seed, 0u);
  moe::Run run(2, DType::bf16);
  const Trained got = train_once(model, run, input(item, seed), spec);
  const auto params = twin_params<double>(model);
  const TwinOutput<double> want =
      TwinModel<double>(item.config, spec, params).run(input(item, seed), {});
  EXPECT_NEAR(got.ce, want.ce, 0.03 * want.ce);
}

}  // namespace
}  // namespace moe::test::zero_experts_test
