// Upcycling: what the result computes at step 0, for copies and for virtual groups, what its
// account says, and what is refused.
#include <algorithm>

#include "convert/upcycle.h"

#include "convert/logit_difference.h"
#include "convert/models.h"
#include "hub/folder/architectures.h"
#include "hub/folder/styles.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/routings.h"

namespace moe::test::upcycle_test {
namespace {

UpcycleOptions renormalised(const ModelConfig& dense, int64_t experts, int64_t top_k,
                            int64_t granularity) {
  UpcycleOptions o;
  o.routing = routing_for_dense(dense, experts, top_k, dense.layers);
  o.granularity = granularity;
  return o;
}

double difference(Model& dense, Model& moe) {
  moe::Run run(2);
  const LogitDifference d = compare_logits(dense, moe, run, some_ids());
  EXPECT_GT(d.largest_logit, 1) << "logits that are nearly 0 prove nothing";
  return d.largest;
}

TEST(Upcycle, CopiesComputeWhatTheDenseModelDoes) {
  for (const QkNorm qk : {QkNorm::none, QkNorm::head, QkNorm::full})
    for (const auto& [experts, top_k] :
         std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {5, 2}, {8, 3}}) {
      ModelConfig c = dense_config();
      c.qk_norm = qk;
      const auto dense = drawn_model(c);
      const Upcycled up = upcycle(*dense, renormalised(c, experts, top_k, 1), 2);
      EXPECT_EQ(up.why_not_exact, "");
      EXPECT_EQ(up.down_scale, 1);
      EXPECT_LT(difference(*dense, *up.model), 1e-5) << experts << " " << top_k;
    }
}

// Only layers with an FFN get experts.
TEST(Upcycle, LayersOfOneSublayer) {
  ModelConfig c = dense_config();
  c.layers = 3;
  c.mixer_only_layers = {0};
  c.ffn_only_layers = {1};
  const auto dense = drawn_model(c);
  UpcycleOptions o = renormalised(c, 4, 2, 1);
  const Upcycled up = upcycle(*dense, o, 2);
  EXPECT_EQ(up.model->config().moe_layer_count(), 2);
  EXPECT_LT(difference(*dense, *up.model), 1e-5);
  ModelConfig whole = dense_config();
  whole.layers = 3;
  EXPECT_EQ(o.layers.count(c), 2);
  EXPECT_EQ(3 * upcycling_bytes(c, o), 2 * upcycling_bytes(whole, o));
  o.layers.every = 2;  // 0 and 2
  EXPECT_EQ(o.layers.count(c), 1);
  EXPECT_EQ(o.layers.count(whole), 2);
  o.layers.listed = {0, 1};
  EXPECT_EQ(o.layers.count(c), 2);
  EXPECT_FAILS(upcycle(*dense, o, 2), "layer 0 is listed as MoE and as one without an FFN");
}

// A config may say how experts would be of which the model has none.
TEST(Upcycle, TakesNothingOfExpertsThatTheDenseModelHasNot) {
  ModelConfig c = dense_config();
  c.shared_experts = 2;
  c.shared_width = 8;
  c.shared_gate = c.expert_down_bias = c.shared_average = c.moe_out_norm = c.weigh_inputs = true;
  const auto dense = drawn_model(c);
  const Upcycled up = upcycle(*dense, renormalised(c, 4, 2, 1), 2);
  EXPECT_EQ(up.model->config().shared_experts, 0);
  EXPECT_LT(difference(*dense, *up.model), 1e-5);
}

// With T a multiple of G a token meets whole copies; E walks over the tails of the products'
// blocks, since equal rows of a router must give equal bits.
TEST(Upcycle, VirtualGroupsComputeWhatTheDenseModelDoes) {
  ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  for (const int64_t g : {2, 3, 8})
    for (const int64_t copies : {1, 2, 13})
      for (const int64_t groups : {1, 2}) {
        if (groups > copies || g * copies < 2) continue;
        UpcycleOptions o = renormalised(c, g * copies, g * groups, g);
        o.router_std = 0.5f;
        const Upcycled up = upcycle(*dense, o, 2);
        EXPECT_EQ(up.why_not_exact, "");
        EXPECT_EQ(up.down_scale, static_cast<double>(g));
        EXPECT_EQ(up.model->config().expert_width, 48 / g);
        EXPECT_LT(difference(*dense, *up.model), 1e-5)
            << "G " << g << ", copies " << copies << ", groups chosen " << groups;
      }
}

TEST(Upcycle, BiasesAndPlainFfnsToo) {
  ModelConfig c = dense_config();
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = c.tied = true;
  c.positions = Positions::learned;
  c.gated = false;
  c.act = ops::Act::gelu;
  const auto dense = drawn_model(c);
  EXPECT_LT(difference(*dense, *upcycle(*dense, renormalised(c, 6, 2, 1), 2).model), 1e-5);
  EXPECT_LT(difference(*dense, *upcycle(*dense, renormalised(c, 8, 4, 4), 2).model), 1e-5);
}

// What breaks the equality is named, and does break it.
TEST(Upcycle, SaysWhyItIsNotExact) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  const auto expect_off = [&](UpcycleOptions o, const std::string& why) {
    const Upcycled up = upcycle(*dense, o, 2);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, why, up.why_not_exact);
    EXPECT_GT(difference(*dense, *up.model), 1e-3) << why;
  };
  UpcycleOptions o = renormalised(c, 8, 2, 1);
  o.noise = 0.02f;
  expect_off(o, "noise");
  o = renormalised(c, 8, 3, 2);
  expect_off(o, "multiple of 2");
  o = renormalised(c, 8, 2, 1);
  o.down_scale = 2.0f;
  expect_off(o, "down_scale");
  o.down_scale.reset();
  o.routing = default_options(find_recipe("olmoe"), 8, 2, c.layers);
  expect_off(o, "do not add up to the same");
}

// Softmax over all experts gives a token K/E at logits that are alike, so `down` is multiplied by
// E/K; by 1 the result is further off.
TEST(Upcycle, ScalesWhatDoesNotAddUpToOne) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  UpcycleOptions o = renormalised(c, 8, 2, 1);
  o.routing = default_options(find_recipe("olmoe"), 8, 2, c.layers);
  const Upcycled scaled = upcycle(*dense, o, 2);
  EXPECT_NEAR(scaled.weight_sum, 0.25, 1e-6);
  EXPECT_NEAR(scaled.down_scale, 4, 1e-5);
  o.down_scale = 1.0f;
  EXPECT_LT(3 * difference(*dense, *scaled.model),
            difference(*dense, *upcycle(*dense, o, 2).model));
  o.down_scale.reset();
  o.routing = default_options(find_recipe("hash"), 8, 2, c.layers);  // two weights of 1
  const Upcycled hashed = upcycle(*dense, o, 2);
  EXPECT_EQ(hashed.down_scale, 0.5);
  EXPECT_EQ(hashed.why_not_exact, "");
  EXPECT_LT(difference(*dense, *hashed.model), 1e-5);
}

// Every recipe by which tokens choose can be upcycled to, and where the account says so the result
// is exact.
TEST(Upcycle, EveryRecipe) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  int exact = 0;
  for (const RoutingOptions& routing : small_routings(8, c.layers)) {
    UpcycleOptions o;
    o.routing = routing;
    if (experts_choose(eval_spec(routing).select)) {
      EXPECT_FAILS(upcycle(*dense, o, 2), "experts choose");
      continue;
    }
    if (!std::holds_alternative<LinearLogits>(eval_spec(routing).logits)) {
      EXPECT_FAILS(upcycle(*dense, o, 2), "moe carve");
      continue;
    }
    const Upcycled up = upcycle(*dense, o, 2);
    if (!up.why_not_exact.empty()) continue;
    ++exact;
    EXPECT_LT(difference(*dense, *up.model), 1e-5) << routing.recipe;
  }
  EXPECT_GE(exact, 5);
}

TEST(Upcycle, LayersThatStayDense) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  UpcycleOptions o = renormalised(c, 4, 2, 1);
  o.layers.every = 2;
  Upcycled up = upcycle(*dense, o, 2);
  EXPECT_EQ(up.model->config().moe_layer_count(), 2);
  EXPECT_NE(param_named(*up.model, "layers.2.ffn.router.weight"), nullptr);
  EXPECT_EQ(param_named(*up.model, "layers.1.ffn.router.weight"), nullptr);
  EXPECT_LT(difference(*dense, *up.model), 1e-5);
  o.layers.listed = {1, 2, 3};
  up = upcycle(*dense, o, 2);
  EXPECT_EQ(param_named(*up.model, "layers.0.ffn.router.weight"), nullptr);
  EXPECT_NE(param_named(*up.model, "layers.3.ffn.router.weight"), nullptr);
}

// The account: as many numbers came in as the dense model has, and as many went out as the result
// has.
TEST(Upcycle, AccountsForEveryNumber) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  UpcycleOptions o = renormalised(c, 8, 4, 2);
  o.layers.every = 2;
  const Upcycled up = upcycle(*dense, o, 2);
  int64_t before = 0, after = 0;
  for (const PartFate& fate : up.parts) before += fate.before, after += fate.after;
  EXPECT_EQ(before, numbers_of(*dense));
  EXPECT_EQ(after, numbers_of(*up.model));
  const auto row = std::find_if(up.parts.begin(), up.parts.end(),
                                [](const PartFate& f) { return f.part == "routers"; });
  ASSERT_NE(row, up.parts.end());
  EXPECT_EQ(row->after, 2 * 8 * c.width);
  EXPECT_EQ(row->became, "drawn from N(0, 0.02)");
}

// The rows of a router are drawn once a copy; experts with noise differ, in about the share that
// was asked for.
TEST(Upcycle, WhatIsDrawn) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  UpcycleOptions o = renormalised(c, 6, 2, 2);
  o.noise = 0.02f;
  o.noise_share = 0.25f;
  const Upcycled up = upcycle(*dense, o, 2);
  const Tensor router = param_named(*up.model, "layers.1.ffn.router.weight")->value;
  EXPECT_TRUE(same_bits(router.slice_rows(0, 1), router.slice_rows(1, 2)));
  EXPECT_FALSE(same_bits(router.slice_rows(1, 2), router.slice_rows(2, 3)));
  double sum = 0;
  for (double x : values(router)) sum += x * x;
  EXPECT_NEAR(std::sqrt(sum / static_cast<double>(router.numel())), 0.02, 0.004);
  const Tensor up_bank = param_named(*up.model, "layers.1.ffn.experts.up.weight")->value,
               first = param_named(*dense, "layers.1.ffn.experts.up.weight")->value.at(0);
  int64_t changed = 0;
  for (int64_t e = 0; e < 6; ++e)
    for (int64_t r = 0; r < 24; ++r)
      for (int64_t i = 0; i < c.width; ++i)
        changed += up_bank.at(e).row<float>(r)[i] != first.row<float>(e % 2 * 24 + r)[i];
  EXPECT_NEAR(static_cast<double>(changed) / static_cast<double>(up_bank.numel()), 0.25, 0.03);
  EXPECT_FALSE(same_bits(up_bank.at(0), up_bank.at(2)));
  EXPECT_TRUE(same_bits(
      up_bank.at(3),
      param_named(*upcycle(*dense, o, 1).model, "layers.1.ffn.experts.up.weight")->value.at(3)));
  o.seed = 2;
  EXPECT_FALSE(same_bits(
      router, param_named(*upcycle(*dense, o, 2).model, "layers.1.ffn.router.weight")->value));
}

TEST(Upcycle, BecomesWhatOtherProgramsRead) {
  ModelConfig c = dense_config();
  const auto type = [](const ModelConfig& dense, int64_t every) {
    UpcycleOptions o = renormalised(dense, 4, 2, 1);
    o.layers.every = every;
    return architecture_of(upcycled_config(dense, o)).model_type;
  };
  EXPECT_EQ(type(c, 1), "mixtral");
  EXPECT_EQ(type(c, 2), "moe_cpp");
  c.qk_norm = QkNorm::head;
  EXPECT_EQ(type(c, 1), "qwen3_moe");
  EXPECT_EQ(type(c, 2), "qwen3_moe");
  c.qk_norm = QkNorm::full;
  EXPECT_EQ(type(c, 1), "olmoe");
}

TEST(Upcycle, Refusals) {
  const ModelConfig c = dense_config();
  const auto dense = drawn_model(c);
  const auto refused = [&](const UpcycleOptions& o, const std::string& part) {
    EXPECT_FAILS(upcycle(*dense, o, 2), part);
  };
  refused(renormalised(c, 1, 1, 1), "experts is 1");
  refused(renormalised(c, 6, 2, 4), "no multiple of granularity 4");
  refused(renormalised(c, 10, 5, 5),
          "does not divide the FFN's width of 48; these do: 1, 2, 3, 4, 6, 8");
  refused(renormalised(c, 4, 5, 1), "4");
  refused(renormalised(c, 4, 1, 1), "gradient");
  UpcycleOptions o = renormalised(c, 4, 2, 1);
  o.routing.zero_experts = 2;
  refused(o, "zero experts");
  o = renormalised(c, 4, 2, 1);
  o.layers.listed = {4};
  refused(o, "layers 0 to 3");
  o = renormalised(c, 4, 2, 1);
  o.noise = -1;
  refused(o, "noise");
  o.noise = NAN;
  refused(o, "noise");
  o.noise = INFINITY;
  refused(o, "noise is inf");
  o = renormalised(c, 4, 2, 1);
  o.down_scale = INFINITY;
  refused(o, "down_scale is inf");
  o = renormalised(c, 4, 2, 1);
  o.noise = 0.1f, o.noise_share = 1.5f;
  refused(o, "noise_share");
  o = renormalised(c, 4, 2, 1);
  o.routing = default_options(find_recipe("hash"), 4, 2, c.layers);
  o.granularity = 2;
  refused(o, "no router");
  const Upcycled up = upcycle(*dense, renormalised(c, 4, 2, 1), 2);
  EXPECT_FAILS(upcycle(*up.model, renormalised(c, 4, 2, 1), 2),
               "routes already: 4 of its 4 layers");
  ModelConfig gated = c;
  gated.norm_gate = 3;
  EXPECT_FAILS(upcycle(*drawn_model(gated), renormalised(gated, 4, 2, 1), 2),
               "gates stand behind the model's norms");
}

}  // namespace
}  // namespace moe::test::upcycle_test
