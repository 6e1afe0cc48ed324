// The memory that is estimated of an evaluation's forward against what its arenas really hold.
// Training's stands in tests/train/memory_test.cpp.
#include <numeric>

#include "model/cost.h"
#include "model/model.h"
#include "support/check.h"
#include "support/routings.h"
#include "support/tiny_model.h"

namespace moe::test::pass_memory_test {
namespace {

ModelConfig config_of(const RoutingOptions& routing) {
  ModelConfig c;
  c.width = 96;
  c.layers = 3;
  c.heads = c.kv_heads = 3;
  c.head_width = 32;
  c.context = 1024;
  c.dense_width = 256;
  c.expert_width = 128;
  c.routing = routing;
  return c;
}

// `least`: of what is estimated.
void expect_estimated(const std::string& name, const ModelConfig& c, ForwardShape shape,
                      double least = 0.85) {
  const auto model = fresh(c);
  const RoutingSpec spec = c.moe_layer_count() > 0 ? eval_spec(c.routing) : RoutingSpec{};
  std::vector<int32_t> ids(static_cast<size_t>(shape.tokens)), positions(ids.size()),
      targets(ids.size(), 7);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 31 % static_cast<size_t>(c.vocab));
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> bounds = {0, shape.tokens};
  moe::Run run(2, shape.dtype);
  ModelSaved saved;
  model->forward(run, {.batch = {ids, positions, bounds}, .routing = &spec}, saved);
  if (shape.loss)
    model->loss_forward(run, run.saved.alloc(DType::f32, {shape.tokens}), targets, saved);
  if (shape.logits > 0)
    model->logits(run, run.saved.alloc(DType::f32, {shape.logits, c.vocab}),
                  saved.hidden.slice_rows(0, shape.logits));
  size_t held = run.saved.peak() + run.scratch.peak();
  for (const Arena& arena : run.thread_scratch) held += arena.peak();
  const double ratio =
      static_cast<double>(held) / static_cast<double>(count_forward_memory(c, shape, spec));
  EXPECT_GT(ratio, least) << name;
  EXPECT_LT(ratio, 1.1) << name;
}

TEST(ForwardMemory, IsEstimatedFromShapes) {
  for (const RoutingOptions& routing : small_routings(6, 3))
    expect_estimated(routing.recipe, config_of(routing), {.tokens = 1024});
  expect_estimated("bf16", config_of(default_options(find_recipe("olmoe"), 6, 2, 3)),
                   {.tokens = 1024, .dtype = DType::bf16, .loss = true});
}

TEST(ForwardMemory, OfResidualStreams) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 6, 2, 3));
  c.hyper = {.streams = 4};
  expect_estimated("streams", c, {.tokens = 1024, .loss = true});
  c.hyper.mixes = true;
  expect_estimated("streams that mix", c, {.tokens = 1024, .dtype = DType::bf16, .loss = true});
}

TEST(ForwardMemory, OfShapesOfTheirOwn) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 6, 2, 3));
  c.shared_experts = 1;
  c.shared_width = 200;
  c.shared_gate = true;
  c.norm_placement = NormPlacement::post;
  expect_estimated("shared experts, post-norm", c, {.tokens = 1024, .loss = true});
  c.norm_placement = NormPlacement::pre;
  c.moe_out_norm = true;
  c.dense_first = 1;
  expect_estimated("norms behind experts", c, {.tokens = 1024, .loss = true});
  c = config_of(default_options(find_recipe("dense"), 1, 1, 3));
  c.qk_norm = QkNorm::full;
  c.kv_heads = 1;
  expect_estimated("dense", c, {.tokens = 1024, .loss = true});
  c.norm_placement = NormPlacement::beside;
  expect_estimated("an FFN beside attention", c, {.tokens = 1024, .loss = true});
  c.norm_placement = NormPlacement::beside_each;
  expect_estimated("an FFN beside attention, a norm each", c, {.tokens = 1024, .loss = true});
  c.norm_placement = NormPlacement::beside;
  c.qk_norm = QkNorm::head;
  c.norm_weights = false;
  c.embedding_norm = c.qk_norm_turned = true;
  expect_estimated("norms without weights", c, {.tokens = 1024, .loss = true});
  c.norm_weights = true;
  c.gated = false;
  c.xielu = true;
  expect_estimated("xIELU", c, {.tokens = 1024, .loss = true});
  c.gated = true;
  c.xielu = c.embedding_norm = c.qk_norm_turned = false;
  c.attention_gate = true;
  c.norm_placement = NormPlacement::both;
  c.linear = {
      .key_heads = 2, .value_heads = 4, .key_width = 32, .value_width = 24, .conv_width = 4};
  c.linear_layers = {0, 1};
  expect_estimated("linear attention", c, {.tokens = 1024, .loss = true});
  c.linear.gate_width = 24;
  expect_estimated("decays of channels", c, {.tokens = 1024, .loss = true});
  c.linear = {};
  c.linear_layers.clear();
  c.conv_width = 3;
  c.conv_layers = {0, 1, 2};
  expect_estimated("convolutions", c, {.tokens = 1024, .loss = true});
  c.conv_width = 0;
  c.conv_layers.clear();
  c.scan_layers = {0, 1};
  for (const int64_t groups : {1, 2}) {
    c.scan = {.heads = 6, .groups = groups, .width = 32, .states = 24, .conv_width = 4};
    expect_estimated("state spaces", c, {.tokens = 1024, .loss = true});
  }
  c.mixer_only_layers = {0, 1};
  c.ffn_only_layers = {2};
  expect_estimated("layers of one sublayer", c, {.tokens = 1024, .loss = true});
  c = config_of(default_options(find_recipe("gemma4"), 6, 2, 3));
  c.norm_placement = NormPlacement::both;
  c.qk_norm = QkNorm::head;
  c.value_norm = c.layer_scale = c.branch_norms = true;
  c.shared_experts = 1;
  c.shared_width = 200;
  c.attention_window = 64;
  c.window_layers = {0, 1};
  c.window_rope_theta = 500;
  c.full = {.kv_heads = 1, .head_width = 2 * c.head_width, .values_of_keys = true};
  c.logit_cap = 30;
  expect_estimated("branches with norms", c, {.tokens = 1024, .loss = true});
  c = config_of(default_options(find_recipe("dense"), 1, 1, 3));
  c.head_width = 48;
  c.rotary_width = 16;
  c.latent = {.width = 64, .query_width = 48, .value_width = 32};
  c.query_growth = {.beta = 0.1f, .context = 64};
  // keys and values of heads are estimated too, which are made where there is no cache
  expect_estimated("latents and queries that grow", c, {.tokens = 1024, .loss = true}, 0.6);
  c.query_growth = {};
  c.sparse = {.top = 128, .heads = 4, .width = 32, .followers = {1}};
  // keys and values of heads are estimated too, which are made where none are chosen
  expect_estimated("sparse attention", c, {.tokens = 1024, .loss = true}, 0.6);
  c = config_of(default_options(find_recipe("dense"), 1, 1, 3));
  c.sparse = {.top = 128, .heads = c.kv_heads, .width = 64, .block = 64, .whole_layers = {1}};
  expect_estimated("blocks of keys", c, {.tokens = 1024, .loss = true});
  c.vocab = 20000;  // whose logits are not kept
  expect_estimated("a large vocabulary", c, {.tokens = 1024, .loss = true});
  expect_estimated("logits of a part", c, {.tokens = 1024, .logits = 600});
}

TEST(ForwardMemory, OfGatesOfHeadsAndDecaysOfTheToken) {
  ModelConfig c = config_of(default_options(find_recipe("dense"), 1, 1, 3));
  c.attention_gate = c.head_gates = true;
  expect_estimated("gates of heads", c, {.tokens = 1024, .loss = true});
  c.linear = {.key_heads = 2,
              .value_heads = 2,
              .key_width = 32,
              .value_width = 32,
              .conv_width = 4,
              .channel_decays = true,
              .decay_floor = -5};
  c.linear_layers = {0, 1};
  expect_estimated("decays of channels made of the token", c, {.tokens = 1024, .loss = true});
  c.linear = {};
  c.linear_layers.clear();
  c.head_width = 48;
  c.rotary_width = 16;
  c.latent = {.width = 64, .query_width = 48, .value_width = 32};
  // keys and values of heads are estimated too, which are made where there is no cache
  expect_estimated("latents and gates of heads", c, {.tokens = 1024, .loss = true}, 0.6);
}

TEST(ForwardMemory, WhereNothingTurnsAndWhatExpertsAreGiven) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 6, 2, 3));
  c.weigh_inputs = true;
  expect_estimated("weights of what experts are given", c, {.tokens = 1024, .loss = true});
  c.nope_layers = {1};
  c.query_growth = {.beta = 0.1f, .context = 64, .where_still = true};
  c.qk_norm = QkNorm::bare;
  c.qk_norm_turned = true;
  expect_estimated("queries that grow where nothing turns", c, {.tokens = 1024, .loss = true});
  c.qkv_clip = 1;
  expect_estimated("clipped queries, keys and values", c, {.tokens = 1024, .loss = true});
}

TEST(ForwardMemory, OfResidualsThatNormsGive) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 6, 2, 3));
  c.norm_placement = NormPlacement::carried;
  c.multipliers.ffn_sum.kept = 2;
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_estimated("residuals that norms give", c,
                     {.tokens = 1024, .dtype = dtype, .loss = true});
  c.lightning_layers = {0, 1};
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_estimated("lightning attention", c, {.tokens = 1024, .dtype = dtype, .loss = true});
}

// Those of layers with linear attention before sublayers, of the others behind.
TEST(ForwardMemory, OfNormsInTwoPlaces) {
  ModelConfig c = config_of(default_options(find_recipe("dense"), 1, 1, 3));
  c.qk_norm = QkNorm::full;
  c.norm_placement = NormPlacement::output;
  c.states_pre_norm = true;
  c.linear = {
      .key_heads = 2, .value_heads = 4, .key_width = 32, .value_width = 24, .conv_width = 4};
  for (const std::vector<int64_t>& layers : {std::vector<int64_t>{0, 1}, {2}}) {
    c.linear_layers = layers;
    expect_estimated("norms in two places", c, {.tokens = 1024, .loss = true});
  }
}

TEST(ForwardMemory, OfStateSpacesBesideAttention) {
  ModelConfig c = config_of(default_options(find_recipe("dense"), 1, 1, 3));
  c.scan_layers = {0, 1, 2};
  c.scan_beside = true;
  c.multipliers.attention_out = 0.5f;
  for (const bool norm : {true, false}) {
    c.scan = {.heads = 6, .groups = 2, .width = 32, .states = 24, .conv_width = 4, .norm = norm};
    expect_estimated("state spaces beside attention", c, {.tokens = 1024, .loss = true});
  }
}

TEST(ForwardMemory, OfSelectiveScans) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 6, 2, 3));
  c.scan_layers = {0, 1};
  for (const bool norm : {true, false}) {
    c.scan = {.heads = 192,
              .groups = 1,
              .width = 1,
              .states = 16,
              .conv_width = 4,
              .norm = norm,
              .step_rank = 24};
    expect_estimated("selective scans", c, {.tokens = 1024, .loss = true});
    expect_estimated("selective scans, bf16", c,
                     {.tokens = 1024, .dtype = DType::bf16, .loss = true});
  }
}

TEST(ForwardMemory, OfZeroExperts) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 15, 2, 3));
  c.routing.zero_experts = 1;
  expect_estimated("zero experts", c, {.tokens = 1024, .loss = true});
}

TEST(ForwardMemory, OfExpertsThatJoinLater) {
  ModelConfig c = config_of(default_options(find_recipe("mixtral"), 6, 2, 3));
  c.layers = 4;
  c.moe_layers = {0, 2};
  c.shared_experts = 1;
  c.shared_width = 200;
  c.shortcut = true;
  expect_estimated("experts that join later", c, {.tokens = 1024, .loss = true});
}

TEST(ForwardMemory, OfSharedLatentsAndEntries) {
  ModelConfig c = config_of(default_options(find_recipe("deepseek-v3"), 6, 2, 3));
  c.heads = 4;
  c.kv_heads = 1;
  c.head_width = 48;
  c.rotary_width = 16;
  c.latent = {.width = 48,
              .query_width = 40,
              .value_width = 48,
              .shared = true,
              .out_groups = 2,
              .out_width = 32};
  c.attention_sinks = true;
  c.attention_window = 64;
  c.window_rope_theta = 500;
  expect_estimated("shared latents", c, {.tokens = 1024, .loss = true});
  c.heavy = {.tokens = 32};
  c.heavy_layers = {1};
  c.light = {.tokens = 4, .top = 16, .heads = 2, .width = 24};
  c.light_layers = {2};
  expect_estimated("entries", c, {.tokens = 1024, .loss = true});
}

TEST(ForwardMemory, OfGatesBehindNorms) {
  ModelConfig c = config_of(default_options(find_recipe("deepseek-v3"), 6, 2, 3));
  c.norm_gate = 16;
  c.dense_first = 1;
  expect_estimated("gates behind norms", c, {.tokens = 1024, .loss = true});
  c.head_width = 48;
  c.rotary_width = 16;
  c.latent = {.width = 64, .query_width = 48, .value_width = 32, .query_both = true};
  c.attention_gate = true;
  // keys and values of heads are estimated too, which are made where there is no cache
  expect_estimated("a gate of latents", c, {.tokens = 1024, .loss = true}, 0.6);
}

TEST(ForwardMemory, OfHeadsOfTwoKinds) {
  ModelConfig c = config_of(default_options(find_recipe("deepseek-v3"), 6, 2, 3));
  c.attention_window = 64;
  c.window_layers = {0, 1};
  c.window_rope_theta = 500;
  c.window_rotary_width = 8;
  c.full = {.kv_heads = 1};
  c.value_factor = 0.5f;
  c.attention_sinks = c.window_sinks = true;
  for (const int64_t width : {16, 80}) {
    c.value_width = width;
    expect_estimated("values apart", c, {.tokens = 1024, .loss = true});
  }
  c = config_of(default_options(find_recipe("deepseek-v3"), 6, 2, 3));
  c.attention_window = 64;
  c.window_layers = {0, 1};
  c.full = {.heads = 9};
  c.attention_gate = c.gate_softplus = true;
  for (const bool of_heads : {true, false}) {
    c.head_gates = of_heads;
    expect_estimated("softplus gates", c, {.tokens = 1024, .loss = true});
  }
}

}  // namespace
}  // namespace moe::test::pass_memory_test
