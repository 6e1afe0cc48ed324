// Experts whose output joins the residual stream behind the next layer, against the scalar twin,
// and with what they do not go together.
#include "core/error.h"
#include "model/model.h"
#include "support/files.h"
#include "support/model_check.h"
#include "support/routings.h"

namespace moe::test::shortcut_test {
namespace {

// Layers 1 and 3 route, 2 and 4 are dense behind them, 0 has nothing of it.
ModelConfig shortcut_config(const char* recipe = "mixtral") {
  ModelConfig c = small();
  c.layers = 5;
  c.routing = small_routing(recipe, 4, 2);
  c.moe_layers = {1, 3};
  c.shared_experts = 1;
  c.shared_width = 5;
  c.shortcut = true;
  weigh_losses(c.routing);
  return c;
}

TEST(Shortcut, LossAndEveryGradientMatchTheTwin) {
  Case item{.name = "shortcut", .config = shortcut_config()};
  expect_gradients(item);
  item.config.shared_gate = true;
  item.name = "shortcut, a gate of shared experts";
  expect_gradients(item);
  item.config = shortcut_config("deepseek-v3");
  item.config.routing.expert_groups = item.config.routing.groups_kept = 1;
  item.config.routing.zero_experts = 3;
  item.name = "shortcut of zero experts too";
  expect_gradients(item);
  item = {.name = "shortcut, dropping", .config = shortcut_config("switch"), .drops = true};
  item.config.routing.capacity_factor = 0.5f;
  expect_gradients(item);
}

// Not what joining at once is.
TEST(Shortcut, JoinsBehindTheNextLayer) {
  const Case late{.name = "late", .config = shortcut_config()};
  Case at_once = late;
  at_once.config.shortcut = false;
  Model model(late.config);
  draw_params(model, 2);
  const auto params = twin_params<double>(model);
  const TwinInput in = input(late, 2);
  const auto loss = [&](const Case& item) {
    return TwinModel<double>(item.config, spec_of(item), params).run(in, {}).ce;
  };
  EXPECT_GT(std::abs(loss(late) - loss(at_once)), 1e-3);
}

TEST(Shortcut, RecomputingGivesTheSameBitsAsKeeping) {
  const Case item{.name = "recomputed", .config = shortcut_config(), .random = true};
  Model model(item.config);
  model.enable_grads();
  const RoutingSpec spec = spec_of(item);
  draw_params(model, 5);
  const TwinInput in = input(item, 5);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    moe::Run run(2, dtype);
    std::vector<std::vector<double>> gradients[2];
    for (const Keep keep : {Keep::all, Keep::inputs}) {
      train_once(model, run, in, spec, keep);
      for (const Param* p : model.params())
        gradients[keep == Keep::inputs].push_back(values(p->grad));
    }
    EXPECT_EQ(gradients[0], gradients[1]) << name_of(dtype);
  }
}

TEST(Shortcut, WhatHasNoMeaningIsRefused) {
  const auto refused = [](auto&& change, const std::string& part) {
    ModelConfig c = shortcut_config();
    change(c);
    EXPECT_FAILS(validate(c), part);
  };
  refused([](ModelConfig& c) { c.moe_layers = {1, 2}; }, "layer 1");
  refused([](ModelConfig& c) { c.moe_layers = {4}; }, "layer 4");
  refused([](ModelConfig& c) { c.shared_experts = 0; }, "shared experts");
  refused([](ModelConfig& c) { c.shared_average = true; }, "shared experts");
  refused([](ModelConfig& c) { c.norm_placement = NormPlacement::post; }, "residual stream");
  refused([](ModelConfig& c) { c.hyper = {.streams = 2}; }, "residual stream");
  refused([](ModelConfig& c) { c.dropout = 0.1f; }, "dropout");
  refused([](ModelConfig& c) { c.routing = RoutingOptions{}; }, "none of the 5 layers");
}

}  // namespace
}  // namespace moe::test::shortcut_test
