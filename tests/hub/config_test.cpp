// config.json: everything survives a round trip, what transformers writes is read, and each refusal
// names file, key and value.
#include "hub/folder/config_json.h"

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/json.h"
#include "hub/configs.h"
#include "support/files.h"

namespace moe::test::config_test {
namespace {

void expect_same(const RoutingOptions& a, const RoutingOptions& b) {
  EXPECT_EQ(a.recipe, b.recipe);
  EXPECT_EQ(a.experts, b.experts);
  EXPECT_EQ(a.zero_experts, b.zero_experts);
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.norm_topk_prob, b.norm_topk_prob);
  EXPECT_EQ(a.capacity_factor, b.capacity_factor);
  EXPECT_EQ(a.capacity_factor_eval, b.capacity_factor_eval);
  EXPECT_EQ(a.noise, b.noise);
  EXPECT_EQ(a.expert_groups, b.expert_groups);
  EXPECT_EQ(a.groups_kept, b.groups_kept);
  EXPECT_EQ(a.routed_scale, b.routed_scale);
  EXPECT_EQ(a.balance_over, b.balance_over);
  EXPECT_EQ(a.stages, b.stages);
  std::vector<float> coefs[2];
  each_loss(a.coef, [&](std::string_view, float c) { coefs[0].push_back(c); });
  each_loss(b.coef, [&](std::string_view, float c) { coefs[1].push_back(c); });
  EXPECT_EQ(coefs[0], coefs[1]);
}

// Floats too are compared exactly.
void expect_same(const ModelConfig& a, const ModelConfig& b) {
  for (auto member :
       {&ModelConfig::vocab, &ModelConfig::width, &ModelConfig::layers, &ModelConfig::heads,
        &ModelConfig::kv_heads, &ModelConfig::head_width, &ModelConfig::context,
        &ModelConfig::shared_experts, &ModelConfig::shared_width, &ModelConfig::moe_every,
        &ModelConfig::dense_first, &ModelConfig::value_width, &ModelConfig::window_rotary_width,
        &ModelConfig::norm_gate})
    EXPECT_EQ(a.*member, b.*member);
  // Widths that no layer has need not survive.
  if (b.moe_layer_count() < b.layers) EXPECT_EQ(a.dense_width, b.dense_width);
  if (b.moe_layer_count() > 0) EXPECT_EQ(a.expert_width, b.expert_width);
  for (auto member : {&ModelConfig::norm_eps, &ModelConfig::rope_theta, &ModelConfig::dropout,
                      &ModelConfig::window_rope_theta, &ModelConfig::value_factor})
    EXPECT_EQ(a.*member, b.*member);
  for (auto member :
       {&ModelConfig::norm_bias, &ModelConfig::attention_bias, &ModelConfig::attention_out_bias,
        &ModelConfig::ffn_bias, &ModelConfig::gated, &ModelConfig::tied, &ModelConfig::shared_gate,
        &ModelConfig::norm_offset, &ModelConfig::norm_weights, &ModelConfig::embedding_norm,
        &ModelConfig::moe_out_norm, &ModelConfig::shared_average, &ModelConfig::xielu,
        &ModelConfig::attention_gate, &ModelConfig::head_gates, &ModelConfig::weigh_inputs,
        &ModelConfig::experts_held, &ModelConfig::states_pre_norm, &ModelConfig::shortcut})
    EXPECT_EQ(a.*member, b.*member);
  EXPECT_EQ(a.rope_scaling.kind, b.rope_scaling.kind);
  EXPECT_EQ(a.attention_window, b.attention_window);
  EXPECT_EQ(a.window_layers, b.window_layers);
  EXPECT_EQ(a.nope_layers, b.nope_layers);
  EXPECT_EQ(a.attention_sinks, b.attention_sinks);
  EXPECT_EQ(a.window_sinks, b.window_sinks);
  EXPECT_EQ(a.full.kv_heads, b.full.kv_heads);
  EXPECT_EQ(a.full.heads, b.full.heads);
  EXPECT_EQ(a.attention_gate, b.attention_gate);
  EXPECT_EQ(a.gate_softplus, b.gate_softplus);
  EXPECT_EQ(a.latent.query_both, b.latent.query_both);
  EXPECT_EQ(a.latent.factor, b.latent.factor);
  EXPECT_EQ(a.latent.query_factor, b.latent.query_factor);
  EXPECT_EQ(a.latent.shared, b.latent.shared);
  EXPECT_EQ(a.latent.out_groups, b.latent.out_groups);
  EXPECT_EQ(a.latent.out_width, b.latent.out_width);
  for (auto member : {&ModelConfig::heavy, &ModelConfig::light}) {
    const Entries &of_a = a.*member, &of_b = b.*member;
    EXPECT_EQ(of_a.tokens, of_b.tokens);
    EXPECT_EQ(of_a.top, of_b.top);
    EXPECT_EQ(of_a.heads, of_b.heads);
    EXPECT_EQ(of_a.width, of_b.width);
  }
  EXPECT_EQ(a.heavy_layers, b.heavy_layers);
  EXPECT_EQ(a.light_layers, b.light_layers);
  EXPECT_EQ(a.table_layers, b.table_layers);
  EXPECT_EQ(a.rotary_width, b.rotary_width);
  EXPECT_EQ(a.multipliers.embedding, b.multipliers.embedding);
  EXPECT_EQ(a.multipliers.residual, b.multipliers.residual);
  EXPECT_EQ(a.multipliers.attention, b.multipliers.attention);
  EXPECT_EQ(a.multipliers.logits, b.multipliers.logits);
  EXPECT_EQ(a.multipliers.scan_in, b.multipliers.scan_in);
  for (auto member : {&Multipliers::scan_out, &Multipliers::attention_out, &Multipliers::ffn_gate,
                      &Multipliers::ffn_down})
    EXPECT_EQ(a.multipliers.*member, b.multipliers.*member);
  EXPECT_EQ(a.scan_beside, b.scan_beside);
  EXPECT_EQ(a.scan.norm, b.scan.norm);
  EXPECT_EQ(a.scan.step_rank, b.scan.step_rank);
  EXPECT_EQ(a.linear.negative, b.linear.negative);
  EXPECT_EQ(a.linear.norm_eps, b.linear.norm_eps);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.norm_placement, b.norm_placement);
  EXPECT_EQ(a.score_cap, b.score_cap);
  EXPECT_EQ(a.logit_cap, b.logit_cap);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.act, b.act);
  EXPECT_EQ(a.moe_layers, b.moe_layers);
  EXPECT_EQ(a.init.std, b.init.std);
  EXPECT_EQ(a.init.cut, b.init.cut);
  EXPECT_EQ(a.init.scale_residual, b.init.scale_residual);
  expect_same(a.routing, b.routing);
}

void expect_round_trip(const ModelConfig& config, const std::string& what) {
  SCOPED_TRACE(what);
  const std::string text = config_to_json(config);
  EXPECT_TRUE(text.ends_with("}\n"));
  const ModelConfig read = parse_config(text, "config.json");
  expect_same(read, config);
  EXPECT_EQ(config_to_json(read), text);
}

// A config as JSON, to be changed and parsed.
Json json_of(const ModelConfig& config) { return parse_json(config_to_json(config), "x"); }
ModelConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }
Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}
Json without(Json json, const std::string& key) {
  EXPECT_EQ(json.erase(key), 1u) << key;
  return json;
}

TEST(Config, SmallOnesSurvive) {
  for (const NamedConfig& named : small_configs()) expect_round_trip(named.config, named.name);
  for (const NamedConfig& named : small_families()) expect_round_trip(named.config, named.name);
  // what a model of Gemma 4 becomes where its own type has no word for it
  ModelConfig own = small_config();
  own.model_type = "moe_cpp";
  own.rope_scaling = {.kind = RopeScaling::Kind::proportional, .share = 0.25f};
  expect_round_trip(own, "a share of each head turns");
  own.score_cap = 7;
  own.logit_cap = 0.5f;
  expect_round_trip(own, "capped scores and logits");
  own = small_config();
  own.layers = 3;
  own.heads = own.kv_heads = 4;
  own.head_width = 6;
  own.attention_window = 5;
  own.window_layers = {0, 2};
  own.window_rope_theta = 500;
  own.rotary_width = 4;
  own.window_rotary_width = 6;
  own.full = {.kv_heads = 2};
  own.value_width = 3;
  own.value_factor = 0.707f;
  own.attention_sinks = own.window_sinks = true;
  own.model_type = "moe_cpp";
  expect_round_trip(own, "values apart, heads of two kinds");
  own.full = {.heads = 8};
  own.attention_gate = own.gate_softplus = own.head_gates = true;
  expect_round_trip(own, "gates of heads");
}

// Families whose configs have a word of their own for the balance over a sequence too.
TEST(Config, FamiliesSurviveBalanceElsewhere) {
  for (const NamedConfig& named : small_families()) {
    ModelConfig c = named.config;
    if (c.moe_layer_count() == 0 || !train_spec(c.routing).losses.balance) continue;
    for (BalanceOver over : {BalanceOver::micro_batch, BalanceOver::running, BalanceOver::step}) {
      c.routing.balance_over = over;
      expect_round_trip(c, named.name + ", balance elsewhere");
    }
  }
}

TEST(Config, EveryRecipeSurvives) {
  for (const RoutingOptions& routing : small_routings(8, small_config().layers)) {
    ModelConfig c = small_config();
    c.routing = routing;
    expect_round_trip(c, routing.recipe);
    const RoutingSpec spec = train_spec(routing);
    if (std::holds_alternative<BufferCapacity>(spec.capacity)) c.routing.capacity_factor = 0.7f;
    if (spec.losses.balance)
      for (BalanceOver over : {BalanceOver::micro_batch, BalanceOver::sequence,
                               BalanceOver::running, BalanceOver::step}) {
        c.routing.balance_over = over;
        expect_round_trip(c, routing.recipe + ", balance elsewhere");
      }
    if (std::holds_alternative<GroupedTopK>(spec.select)) {
      c.routing.expert_groups = 2;
      c.routing.groups_kept = 1;
      c.routing.routed_scale = 1.3f;
      expect_round_trip(c, routing.recipe + ", grouped otherwise");
    }
  }
}

TEST(Config, RoutingStagesAreReadAtTheDoor) {
  ModelConfig c = small_config();
  c.routing = small_routing("custom", 4, c.layers);
  const Json json = json_of(c);
  EXPECT_EQ(json["routing_stages"]["score"], "sigmoid");
  EXPECT_FAILS(parse(with(json, "routing_stages", {{"scores", "softmax"}})),
               "config.json: \"routing_stages\"");
  EXPECT_FAILS(parse(with(json, "routing_stages", {{"scores", "softmax"}})), "\"score\"");
  EXPECT_FAILS(parse(with(json, "routing_stages", "olmoe")), "config.json: \"routing_stages\"");
  EXPECT_FAILS(parse(with(json, "recipe", "olmoe")), "config.json: ");
  EXPECT_FAILS(parse(without(json, "routing_stages")), "config.json: ");
  c.routing = small_routing("deepseek-v3", 8, c.layers);
  EXPECT_FAILS(parse(with(json_of(c), "n_group", 3)),
               "config.json: 3 groups do not divide 8 experts");
  EXPECT_FAILS(parse(with(json_of(c), "n_group", 0)), "\"n_group\" is 0");
  EXPECT_FAILS(parse(with(json_of(c), "router_balance_over", "stpe")), "did you mean \"step\"?");
  EXPECT_FAILS(parse(with(json_of(c), "router_load_loss_coef", 0.1)), "no load loss");
}

TEST(Config, EveryChoiceSurvives) {
  const ModelConfig base = small_shared();
  const auto each = [&](auto member, auto... values) {
    (([&] {
       ModelConfig c = base;
       c.*member = values;
       if (c.norm == NormKind::rms) c.norm_bias = false;
       expect_round_trip(c, "a choice");
     }()),
     ...);
  };
  each(&ModelConfig::norm, NormKind::rms, NormKind::layer);
  each(&ModelConfig::norm_placement, NormPlacement::pre, NormPlacement::post,
       NormPlacement::beside_each, NormPlacement::carried);
  each(&ModelConfig::positions, Positions::rope, Positions::learned);
  each(&ModelConfig::qk_norm, QkNorm::none, QkNorm::head, QkNorm::full, QkNorm::bare);
  each(&ModelConfig::act, ops::Act::silu, ops::Act::gelu, ops::Act::gelu_tanh, ops::Act::relu,
       ops::Act::relu2);
  for (auto member : {&ModelConfig::norm_bias, &ModelConfig::attention_bias, &ModelConfig::ffn_bias,
                      &ModelConfig::gated, &ModelConfig::tied, &ModelConfig::shared_gate})
    each(member, false, true);
  ModelConfig bare = base;
  bare.norm = NormKind::rms;
  bare.norm_bias = bare.norm_weights = false;
  bare.embedding_norm = true;
  expect_round_trip(bare, "norms without weights");
  bare.norm = NormKind::layer;
  expect_round_trip(bare, "LayerNorms without weights");
  ModelConfig passing = base;
  passing.routing.zero_experts = 3;
  expect_round_trip(passing, "zero experts");
  passing = small_olmoe();
  passing.routing.zero_experts = 2;
  EXPECT_EQ(json_of(passing).at("model_type"), "moe_cpp");
  EXPECT_EQ(json_of(passing).at("zero_expert_num"), 2);
  expect_round_trip(passing, "zero experts of olmoe");
  passing.layers = 3;
  passing.moe_layers = {1};
  passing.shared_experts = 1;
  passing.shared_width = 8;
  passing.shortcut = true;
  expect_round_trip(passing, "experts that join later");
  ModelConfig weighed = base;
  weighed.weigh_inputs = true;
  expect_round_trip(weighed, "weights of what experts are given");
  for (ModelConfig clipped : {base, small_olmoe()}) {
    clipped.qkv_clip = 7.5f;
    expect_round_trip(clipped, "clipped queries, keys and values");
    EXPECT_EQ(parse(json_of(clipped)).qkv_clip, 7.5f);
  }
  ModelConfig cut = base;
  cut.attention_window = 6;
  cut.window_chunks = true;
  cut.nope_layers = {1};
  cut.query_growth = {.beta = 0.1f, .context = 8, .where_still = true};
  expect_round_trip(cut, "chunks, and queries that grow where nothing turns");
  const ModelConfig read = parse(json_of(cut));
  EXPECT_TRUE(read.window_chunks && read.query_growth.where_still);
  ModelConfig apart = base;
  apart.norm_placement = NormPlacement::output;
  apart.states_pre_norm = true;
  apart.linear = {.key_heads = 2,
                  .value_heads = 2,
                  .key_width = 3,
                  .value_width = 5,
                  .conv_width = 3,
                  .negative = true,
                  .norm_eps = 1e-6f};
  apart.linear_layers = {0};
  expect_round_trip(apart, "norms in two places");
  ModelConfig carried = base;
  carried.norm_placement = NormPlacement::carried;
  carried.multipliers.attention_sum = {.kept = 3.5f, .added = 0.5f};
  carried.multipliers.lightning_sum = {.kept = 2.5f, .added = 0.75f};
  carried.multipliers.ffn_sum = {.kept = 1.5f, .added = 0.25f};
  carried.lightning_layers = {1};
  carried.lightning_norm_eps = 1e-5f;
  expect_round_trip(carried, "residuals that norms give");
  EXPECT_EQ(parse(json_of(carried)).multipliers.attention_sum, carried.multipliers.attention_sum);
  EXPECT_EQ(parse(json_of(carried)).multipliers.lightning_sum, carried.multipliers.lightning_sum);
  EXPECT_EQ(parse(json_of(carried)).multipliers.ffn_sum, carried.multipliers.ffn_sum);
  carried.multipliers.residual = 0.5f;
  EXPECT_FAILS(config_to_json(carried), "there alone");
  carried.multipliers.residual = 1;
  carried.norm_placement = NormPlacement::pre;
  EXPECT_FAILS(config_to_json(carried), "there alone");
  ModelConfig beside = small_config();
  beside.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .norm = false};
  beside.scan_layers = {0};
  beside.scan_beside = true;
  beside.multipliers = {.scan_in = {0.7f, 1.3f, 0.6f, 1.2f, 0.8f},
                        .scan_out = 0.5f,
                        .attention_out = 1.5f,
                        .ffn_gate = 0.6f,
                        .ffn_down = 1.4f};
  expect_round_trip(beside, "a state space beside attention");
  ModelConfig selective = small_config();
  selective.scan = {.heads = 12,
                    .groups = 1,
                    .width = 1,
                    .states = 5,
                    .conv_width = 3,
                    .norm = false,
                    .step_rank = 2};
  selective.scan_layers = {0};
  expect_round_trip(selective, "a selective scan");
  beside.multipliers.scan_in[3] = 0;
  EXPECT_FAILS(config_to_json(beside), "the multiplier of what reads its states is 0");
  apart.norm_placement = NormPlacement::pre;
  EXPECT_FAILS(config_to_json(apart), "apart from the others' only where");
  apart.states_pre_norm = false;
  apart.linear.norm_eps = -1;
  EXPECT_FAILS(config_to_json(apart), "the epsilon of linear attention's norm is -1");
}

TEST(Config, FloatsOfAnyShapeSurvive) {
  for (const float x :
       {0.1f, 1.0f / 3, 1e-38f, 3.4e38f, 1.17549435e-38f, 16777217.0f, 0.0123456789f}) {
    ModelConfig olmoe = small_olmoe();
    olmoe.rope_theta = olmoe.norm_eps = olmoe.routing.coef.balance = olmoe.routing.coef.z =
        olmoe.init.std = x;
    olmoe.routing.experts = 9;
    olmoe.routing.top_k = 7;  // the coefficient is divided by it in the file
    expect_round_trip(olmoe, fmt::format("olmoe {}", x));
    ModelConfig other = small_shared();
    other.rope_theta = other.norm_eps = other.routing.coef.balance = other.routing.coef.z =
        other.init.std = other.init.cut = x;
    expect_round_trip(other, fmt::format("moe_cpp {}", x));
  }
}

TEST(Config, TheTypeIsTheFirstThatCanSayIt) {
  const std::map<std::string, std::string> others = {{"olmoe", "olmoe"},
                                                     {"olmoe_tied_bias", "olmoe"},
                                                     {"mixtral_as_olmoe", "olmoe"},
                                                     {"dense_tied", "llama"},
                                                     {"recipe_dense", "llama"},
                                                     {"recipe_mixtral", "mixtral"},
                                                     {"recipe_ernie-moe", "ernie4_5_moe"},
                                                     {"recipe_qwen3-moe", "mixtral"}};
  for (const NamedConfig& named : small_configs())
    EXPECT_EQ(json_of(named.config)["model_type"],
              others.contains(named.name) ? others.at(named.name) : "moe_cpp")
        << named.name;
  // Each part that olmoe cannot say makes it another type.
  const auto becomes = [](const char* type, auto change) {
    ModelConfig c = small_olmoe();
    change(c);
    EXPECT_EQ(json_of(c)["model_type"], type);
  };
  becomes("moe_cpp", [](ModelConfig& c) { c.attention_window = 5; });
  becomes("moe_cpp", [](ModelConfig& c) { c.attention_window = 5, c.window_layers = {1}; });
  becomes("moe_cpp", [](ModelConfig& c) { c.dropout = 0.1f; });
  becomes("qwen3_moe", [](ModelConfig& c) { c.qk_norm = QkNorm::head; });
  becomes("moe_cpp", [](ModelConfig& c) { c.head_width = 4; });
  becomes("moe_cpp", [](ModelConfig& c) { c.shared_experts = c.shared_width = 1; });
  becomes("moe_cpp", [](ModelConfig& c) { c.moe_every = 2; });
  becomes("moe_cpp", [](ModelConfig& c) { c.act = ops::Act::gelu; });
  becomes("moe_cpp", [](ModelConfig& c) { c.gated = false; });
  becomes("moe_cpp", [](ModelConfig& c) { c.ffn_bias = true; });
  becomes("moe_cpp", [](ModelConfig& c) { c.positions = Positions::learned; });
  becomes("moe_cpp", [](ModelConfig& c) { c.norm = NormKind::layer; });
  becomes("moe_cpp", [](ModelConfig& c) { c.norm_placement = NormPlacement::post; });
  becomes("moe_cpp", [](ModelConfig& c) { c.model_type = "moe_cpp"; });  // as what it was read
  becomes("olmoe", [](ModelConfig& c) { c.model_type = "llama"; });      // which cannot say it
  for (const RoutingOptions& routing : small_routings(4, 2)) {
    ModelConfig c = small_olmoe();
    c.routing = routing;
    const std::set<std::string> plain = {"olmoe", "mixtral", "deepseek-moe", "qwen2-moe",
                                         "qwen3-moe"};  // dropless top-k of a softmax
    EXPECT_EQ(json_of(c)["model_type"], plain.contains(routing.recipe) ? "olmoe" : "moe_cpp")
        << routing.recipe;
    expect_round_trip(c, routing.recipe);
  }
}

// transformers' balance loss is K when balanced, ours 1.
TEST(Config, OlmoeBalanceIsInTransformersUnits) {
  const Json json = json_of(small_olmoe());
  EXPECT_DOUBLE_EQ(json["router_aux_loss_coef"].get<double>(), 0.005);
  EXPECT_EQ(parse(with(json, "router_aux_loss_coef", 0.25)).routing.coef.balance, 0.5f);
}

TEST(Config, ReadsWhatTransformersWrote) {
  const Json golden = read_json(std::string(MOE_TEST_DATA) + "/golden/olmoe_gqa.json");
  const ModelConfig c = parse(golden["config"]);
  EXPECT_EQ(c.width, 32);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_width, 8);
  EXPECT_EQ(c.expert_width, 16);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.qk_norm, QkNorm::full);
  EXPECT_EQ(c.routing.recipe, "olmoe");
  EXPECT_EQ(c.routing.norm_topk_prob, std::nullopt);
  EXPECT_EQ(parse(with(golden["config"], "norm_topk_prob", true)).routing.norm_topk_prob, true);
}

TEST(Config, RopeInEitherFormButNotInTwo) {
  const Json both = json_of(small_olmoe());
  const Json old_form = without(both, "rope_parameters"), new_form = without(both, "rope_theta");
  EXPECT_EQ(parse(old_form).rope_theta, 12345.678f);
  EXPECT_EQ(parse(new_form).rope_theta, 12345.678f);
  EXPECT_FAILS(parse(with(both, "rope_theta", 500)),
               "\"rope_theta\" is 500, but \"rope_parameters\" says 12345.678");
  EXPECT_FAILS(parse(without(old_form, "rope_theta")), "\"rope_theta\" is missing");
  EXPECT_FAILS(parse(with(new_form, "rope_parameters", {{"rope_type", "su"}, {"rope_theta", 1e4}})),
               "\"rope_type\" is \"su\"");
  EXPECT_FAILS(parse(with(new_form, "rope_parameters", {{"rope_type", "default"}})),
               "\"rope_theta\" is missing");
  EXPECT_FAILS(parse(with(new_form, "rope_parameters", {{"rope_theta", 1e4}, {"factor", 2}})),
               "\"factor\" is not known");
  EXPECT_FAILS(parse(with(new_form, "rope_parameters",
                          {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}})),
               "\"partial_rotary_factor\" is 0.5");
  EXPECT_EQ(parse(with(old_form, "rope_scaling", nullptr)).rope_theta, 12345.678f);
}

TEST(Config, WhatCannotBeHonouredIsRefused) {
  const Json olmoe = json_of(small_olmoe());
  EXPECT_FAILS(parse(with(olmoe, "clip_qkv", -8.0)), "config.json: \"clip_qkv\" is -8");
  EXPECT_NO_THROW(parse(with(olmoe, "attention_dropout", 0.1)));
  EXPECT_FAILS(parse(with(olmoe, "head_dim", 16)), "\"head_dim\" is 16");
  EXPECT_FAILS(parse(with(olmoe, "hidden_act", "swish")), "\"hidden_act\" is \"swish\"");
  EXPECT_FAILS(parse(with(olmoe, "hidden_act", "gelu")), "\"hidden_act\" is not \"silu\"");
  EXPECT_FAILS(parse(with(with(olmoe, "recipe", "switch"), "num_experts_per_tok", 1)),
               "cannot say this model: recipe 'switch'");
  EXPECT_FAILS(parse(with(olmoe, "num_attention_heads", 3)),
               "\"num_attention_heads\" is 3, which does not divide");
  EXPECT_FAILS(parse(with(olmoe, "num_experts_per_tok", 4)), "config.json: ");
  EXPECT_FAILS(parse(with(olmoe, "num_key_value_heads", 3)), "config.json: 4 heads cannot share 3");
  EXPECT_FAILS(parse(with(olmoe, "vocab_size", 1 << 25)),
               "\"vocab_size\" is 33554432, it must be between 1 and 16777216");
  EXPECT_FAILS(parse(with(olmoe, "hidden_size", -8)), "\"hidden_size\" is -8");
  EXPECT_FAILS(parse(with(olmoe, "rms_norm_eps", 1e300)), "\"rms_norm_eps\" is 1e+300");
  EXPECT_FAILS(parse(with(olmoe, "num_hidden_layers", int64_t{1} << 40)),
               "\"num_hidden_layers\" is 1099511627776");
  const Json general = json_of(small_shared());
  EXPECT_FAILS(parse(with(general, "recipe", "mixtrel")), "did you mean \"mixtral\"?");
  EXPECT_FAILS(parse(with(general, "moe_layers", {2, 1})), "\"moe_layers\" must list layers");
  EXPECT_FAILS(parse(with(general, "moe_layers", {1, 7})), "layer 7 is listed");
  EXPECT_FAILS(parse(with(general, "moe_layers", {-1})), "\"moe_layers\" must list layers");
  ModelConfig of_states = small_shared();
  of_states.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3};
  of_states.scan_layers = {0, 2};
  const Json scanned = json_of(of_states);
  EXPECT_FAILS(parse(with(scanned, "mamba_n_groups", 3)), "4 heads of a state space are not 3");
  EXPECT_FAILS(parse(with(scanned, "mamba_d_conv", 5000)),
               "the convolution's width of a state space: 5000; it must be 2 to 4096");
  EXPECT_FAILS(parse(with(scanned, "mamba_dt_rank", 2)),
               "made of 2 numbers: each of its values is then a head in one group");
  of_states.scan = {.heads = 8192, .groups = 1, .width = 1, .states = 5, .conv_width = 3};
  EXPECT_FAILS(json_of(of_states), "heads of a state space: 8192; it must be 1 to 4096");
  of_states.scan.step_rank = 2;
  EXPECT_EQ(parse(json_of(of_states)).scan.heads, 8192);
  EXPECT_FAILS(parse(with(json_of(of_states), "mamba_beside", true)),
               "made of 2 numbers: each of its values");
  EXPECT_FAILS(parse(with(scanned, "mamba_layers", {0, 3})), "layer 3 is listed");
  EXPECT_FAILS(parse(without(scanned, "mamba_layers")), "4 heads, and 0 layers have one");
  EXPECT_FAILS(parse(with(with(scanned, "conv_layers", {2}), "conv_L_cache", 3)),
               "layer 2 is listed as one of a state space and as one of something else");
  EXPECT_FAILS(parse(with(scanned, "ffn_only_layers", {2})),
               "layer 2 is listed as one that is an FFN alone and as one of something else");
  EXPECT_FAILS(parse(with(scanned, "mixer_only_layers", {3})), "layer 3 is listed");
}

TEST(Config, ModelTypesAndUnknownKeys) {
  const Json olmoe = json_of(small_olmoe());
  EXPECT_FAILS(
      parse(with(olmoe, "model_type", "olmoo")),
      "config.json: \"model_type\" is \"olmoo\", which this version does not read; did you "
      "mean \"olmoe\"?");
  EXPECT_FAILS(parse(with(olmoe, "model_type", "bert")),
               "which this version does not read; docs/families.md lists those that it reads");
  EXPECT_FAILS(parse(without(olmoe, "model_type")), "\"model_type\" is missing");
  EXPECT_FAILS(parse(with(olmoe, "norm_topk_probs", true)),
               "\"norm_topk_probs\" is not known here; did you mean \"norm_topk_prob\"?");
  EXPECT_FAILS(parse(with(json_of(small_shared()), "shared_expert_gated", true)),
               "did you mean \"shared_expert_gate\"?");
  Json harmless = olmoe;
  harmless.update({{"transformers_version", "9"},
                   {"use_cache", false},
                   {"torch_dtype", "bfloat16"},
                   {"id2label", {{"0", "x"}}},
                   {"eos_token_id", 3}});
  expect_same(parse(harmless), small_olmoe());
  EXPECT_FAILS(parse_config("[]", "c.json"), "c.json: an object is needed");
  EXPECT_FAILS(parse_config("{", "c.json"), "c.json: line 1");
}

// A key may only be left out when it changes nothing or is documented to be optional.
TEST(Config, EveryOtherKeyIsNeeded) {
  const std::set<std::string> optional_olmoe = {
      "architectures", "attention_dropout",   "bos_token_id",       "clip_qkv",
      "eos_token_id",  "init_scale_residual", "initializer_cutoff", "output_router_logits",
      "pad_token_id",  "rope_parameters",     "rope_theta",         "router_z_loss_coef"};
  const std::set<std::string> optional_general = {"architectures", "capacity_factor",
                                                  "capacity_factor_eval"};
  for (const auto& [config, optional] : {std::pair{small_olmoe(), optional_olmoe},
                                         std::pair{small_nanomoe(true, true), optional_general},
                                         std::pair{small_shared(), optional_general}}) {
    const Json full = json_of(config);
    for (const auto& item : full.items()) {
      if (optional.contains(item.key()))
        EXPECT_NO_THROW(parse(without(full, item.key()))) << item.key();
      else
        EXPECT_FAILS(parse(without(full, item.key())),
                     fmt::format("\"{}\" is missing", item.key()));
    }
  }
}

TEST(Config, WhatCannotBeReadIsNotWritten) {
  ModelConfig c = small_shared();
  c.layers = 5000;
  EXPECT_FAILS(config_to_json(c), "\"num_hidden_layers\" is 5000");
  c = small_shared();
  c.routing.coef.balance = INFINITY;
  EXPECT_FAILS(config_to_json(c), "\"router_aux_loss_coef\" is inf");
  c = small_olmoe();
  c.routing.coef.balance = NAN;
  EXPECT_FAILS(config_to_json(c), "\"router_aux_loss_coef\" is nan");
  c = small_olmoe();
  c.heads = 3;
  EXPECT_FAILS(config_to_json(c), "3 heads cannot share");
}

}  // namespace
}  // namespace moe::test::config_test
