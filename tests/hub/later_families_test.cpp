// Families of 2025 and 2026, each by the config that is published of it: read as what it is, its
// own words known, and what it could say that the engine does not do refused by name.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::later_families_test {
namespace {

TEST(LaterFamilies, SolarOpen) {
  Json json = with(published("glm_4_5_air"), "model_type", "solar_open");
  json.erase("num_nextn_predict_layers");
  EXPECT_FAILS(parse(json), "only 0 is of this family");  // a dense layer first
  json["first_k_dense_replace"] = 0;
  EXPECT_FAILS(parse(json), "\"partial_rotary_factor\" is 0.5; only 1 is of this family");
  json["partial_rotary_factor"] = 1.0;
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.moe_layer_count(), c.layers);
  EXPECT_EQ(c.rotary_width, 0);
  EXPECT_EQ(c.qk_norm, QkNorm::none);
  EXPECT_EQ(c.shared_experts * c.shared_width, 1408);
  for (const char* key : {"first_k_dense_replace", "intermediate_size", "use_qk_norm",
                          "partial_rotary_factor"})  // as transformers has it
    EXPECT_EQ(config_to_json(parse(without(json, key))), config_to_json(c)) << key;
}

// Ring-mini-sparse-2.0-exp's (huggingface inclusionAI) without the keys of its sparse attention.
Json ling_mini() {
  return Json::parse(R"({
    "architectures": ["BailingMoeV2ForCausalLM"], "attention_dropout": 0.0, "num_hidden_layers": 20,
    "hidden_size": 2048, "intermediate_size": 5120, "eos_token_id": 156892, "pad_token_id": 156892,
    "first_k_dense_replace": 1, "hidden_act": "silu", "max_position_embeddings": 32768,
    "model_type": "bailing_moe", "moe_intermediate_size": 512, "norm_topk_prob": true,
    "num_experts_per_tok": 8, "num_attention_heads": 16, "num_experts": 256,
    "num_key_value_heads": 4, "rope_theta": 600000, "rope_scaling": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.52.3",
    "use_bias": false, "use_rmsnorm": true, "rms_norm_eps": 1e-06, "head_dim": 128,
    "num_shared_experts": 1, "use_cache": true, "use_qkv_bias": false, "embedding_dropout": 0.0,
    "output_dropout": 0.0, "vocab_size": 157184, "partial_rotary_factor": 0.5,
    "router_dtype": "fp32", "moe_router_enable_expert_bias": true, "routed_scaling_factor": 2.5,
    "n_group": 8, "topk_group": 4, "use_qk_norm": true, "score_function": "sigmoid",
    "moe_shared_expert_intermediate_size": 512})");
}

TEST(LaterFamilies, Ling2) {
  const Json given = ling_mini();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "bailing_moe_v2");
  EXPECT_EQ(c.rotary_width, 64);
  EXPECT_EQ(c.dense_first, 1);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).groups, 8);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).keep, 4);
  EXPECT_EQ(std::get<ChosenScores>(spec.weigh).scale, 2.5f);
  // Ling-flash-2.0's sizes; its files hold so many numbers in bf16, and so many in f32 (huggingface
  // inclusionAI/Ling-flash-2.0).
  Json flash = with(given, "hidden_size", 4096);
  for (const auto& [key, value] : {std::pair{"num_hidden_layers", 32},
                                   {"num_attention_heads", 32},
                                   {"intermediate_size", 9216},
                                   {"moe_intermediate_size", 1024}})
    flash[key] = value;
  EXPECT_EQ(count_params(parse(flash)).total(), 102889697280);
  EXPECT_EQ(count_params(parse(flash)).buffers, 7936);

  const auto same = [&](const Json& json) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(c)) << json.dump();
  };
  same(without(given, "model_type"));  // as its own class saves it
  same(with(given, "model_type", "bailing_moe_v2"));
  same(with(with(given, "norm_head", false), "num_nextn_predict_layers", 0));
  same(with(without(given, "partial_rotary_factor"), "rotary_dim", 64));
  same(with(given, "rotary_dim", 64));
  for (const char* key : {"moe_shared_expert_intermediate_size", "score_function", "use_bias",
                          "moe_router_enable_expert_bias", "norm_topk_prob"})
    same(without(given, key));
  expect_needed(given, {"first_k_dense_replace", "head_dim", "n_group", "num_experts",
                        "num_shared_experts", "partial_rotary_factor", "rope_theta",
                        "routed_scaling_factor", "topk_group", "use_qk_norm"});
  expect_refused(given, {{"use_bias", true},
                         {"use_qkv_bias", true},
                         {"use_rmsnorm", false},
                         {"norm_head", true},
                         {"norm_softmax", true},
                         {"norm_topk_prob", false},
                         {"moe_router_enable_expert_bias", false},
                         {"score_function", "softmax"},
                         {"num_experts_per_tok", 1},
                         {"rotary_dim", 32}});
  EXPECT_FAILS(parse(with(with(given, "partial_rotary_factor", 1.0), "rotary_dim", 64)),
               "\"rotary_dim\" is 64; it does not go with \"partial_rotary_factor\"");
  EXPECT_FAILS(parse(with(given, "moba_block_size", 1024)), "\"moba_block_size\" is not known");
  // Ling 1.0 is another model.
  for (const Json& json : {without(given, "architectures"),
                           with(given, "architectures", Json::array({"BailingMoeForCausalLM"}))})
    EXPECT_FAILS(parse(json),
                 "\"model_type\" is \"bailing_moe\", which this version does not read");
}

// Sarvam-30B's sizes, with the keys of its class.
TEST(LaterFamilies, Sarvam) {
  Json given = ling_mini();
  for (const auto& [key, value] : {std::pair<const char*, Json>{"model_type", "sarvam_moe"},
                                   {"architectures", Json::array({"SarvamMoEForCausalLM"})},
                                   {"attn_implementation", "eager"},
                                   {"num_hidden_layers", 19},
                                   {"hidden_size", 4096},
                                   {"intermediate_size", 8192},
                                   {"moe_intermediate_size", 1024},
                                   {"moe_shared_expert_intermediate_size", 1024},
                                   {"num_attention_heads", 64},
                                   {"head_dim", 64},
                                   {"num_experts", 128},
                                   {"num_experts_per_tok", 6},
                                   {"n_group", 1},
                                   {"topk_group", 1},
                                   {"rope_theta", 8000000.0},
                                   {"max_position_embeddings", 131072},
                                   {"max_window_layers", 19},
                                   {"vocab_size", 262144}})
    given[key] = value;
  EXPECT_FAILS(parse(given), "\"partial_rotary_factor\" is 0.5; only 1 is of this family");
  given.erase("partial_rotary_factor");
  EXPECT_FAILS(parse(given), "\"use_rmsnorm\" is not known");
  given.erase("use_rmsnorm");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "sarvam_moe");
  EXPECT_EQ(c.rotary_width, 0);
  EXPECT_EQ(c.dense_first, 1);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(std::get<GroupedTopK>(eval_spec(c.routing).select).groups, 1);
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(c.routing).weigh).scale, 2.5f);
  // 32152650368 numbers lie in its files, the biases among them.
  EXPECT_EQ(count_params(c).total(), 32152648064);
  EXPECT_EQ(count_params(c).buffers, 2304);
  EXPECT_EQ(config_to_json(parse(with(given, "partial_rotary_factor", 1.0))), config_to_json(c));
  expect_needed(
      given, {"first_k_dense_replace", "head_dim", "n_group", "num_experts", "num_shared_experts",
              "rope_theta", "routed_scaling_factor", "topk_group", "use_qk_norm"});
  expect_refused(given, {{"use_bias", true},
                         {"use_qkv_bias", true},
                         {"norm_topk_prob", false},
                         {"moe_router_enable_expert_bias", false},
                         {"score_function", "softmax"},
                         {"num_experts_per_tok", 1}});
  // Sarvam-105B is another model.
  EXPECT_FAILS(parse(with(given, "model_type", "sarvam_mla")),
               "\"model_type\" is \"sarvam_mla\", which this version does not read");
}

// Trinity-Nano's sizes (huggingface arcee-ai/Trinity-Nano-Preview).
TEST(LaterFamilies, Trinity) {
  const Json given = Json::parse(R"({
    "architectures": ["AfmoeForCausalLM"], "attention_dropout": 0.0, "dtype": "bfloat16",
    "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 131072,
    "model_type": "afmoe", "moe_intermediate_size": 256, "mup_enabled": true, "n_group": 1,
    "num_attention_heads": 8, "num_dense_layers": 2, "num_expert_groups": 1, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 56, "num_key_value_heads": 2,
    "num_limited_groups": 1, "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000, "route_norm": true, "route_scale": 2.826, "score_func": "sigmoid",
    "sliding_window": 2048, "tie_word_embeddings": false, "topk_group": 1, "use_cache": true,
    "use_grouped_mm": true, "vocab_size": 200192})");
  const ModelConfig c = parse(given);
  EXPECT_TRUE(c.attention_gate && c.norm_placement == NormPlacement::both);
  EXPECT_EQ(c.attention(2).window, 2048);
  EXPECT_EQ(c.attention(2).rotary_width, 128);
  EXPECT_EQ(c.attention(3).window, 0);
  EXPECT_EQ(c.attention(3).rotary_width, 0);
  EXPECT_EQ(c.multipliers.embedding, 32);
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(c.routing).weigh).scale, 2.826f);
  EXPECT_EQ(std::get<GroupedTopK>(eval_spec(c.routing).select).groups, 1);
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 6.12e9, 0.01e9);  // "6B"
  std::vector<std::string> types;
  for (int64_t i = 0; i < c.layers; ++i)
    types.emplace_back(c.has_window(i) ? "sliding_attention" : "full_attention");
  Json listed = with(without(given, "global_attn_every_n_layers"), "layer_types", types);
  listed["attention_bias"] = false;
  EXPECT_EQ(config_to_json(parse(listed)), config_to_json(c));
  EXPECT_EQ(parse(with(given, "mup_enabled", false)).multipliers.embedding, 1);
  expect_needed(given, {"global_attn_every_n_layers", "mup_enabled", "num_dense_layers",
                        "num_shared_experts", "route_scale", "sliding_window"});
  expect_refused(given, {{"attention_bias", true},
                         {"n_group", 2},
                         {"num_limited_groups", 2},
                         {"route_norm", false},
                         {"score_func", "softmax"}});
}

// K-EXAONE's words with four layers (github NVIDIA/TensorRT-LLM
// tests/unittest/_torch/modeling/test_modeling_exaone_moe.py).
TEST(LaterFamilies, KExaone) {
  const Json given = Json::parse(R"({
    "architectures": ["ExaoneMoEForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "dtype": "bfloat16", "eos_token_id": 53, "first_last_k_dense_replace": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 6144, "initializer_range": 0.02,
    "intermediate_size": 18432, "is_moe_layer": [false, true, true, true],
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                    "full_attention"],
    "max_position_embeddings": 262144, "model_type": "exaone_moe", "moe_intermediate_size": 2048,
    "n_group": 1, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 8,
    "num_shared_experts": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 1000000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "sliding_window": 4, "sliding_window_pattern": "LLLG", "tie_word_embeddings": false,
    "tokenizer_class": "GPT2Tokenizer", "topk_group": 1, "topk_method": "noaux_tc",
    "transformers_version": "5.0.0.dev0", "use_cache": true, "vocab_size": 153600})");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.dense_first, 1);
  EXPECT_EQ(c.nope_layers, std::vector<int64_t>{3});
  EXPECT_EQ(c.attention(2).window, 4);
  EXPECT_EQ(c.attention(3).window, 0);
  EXPECT_EQ(c.attention(2).rotary_width, 128);
  EXPECT_EQ(c.shared_experts * c.shared_width, 2048);
  const auto same = [&](const Json& json) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(c)) << json.dump();
  };
  same(with(given, "mlp_layer_types", {"dense", "sparse", "sparse", "sparse"}));
  same(with(given, "first_k_dense_replace", 1));
  same(with(without(given, "layer_types"), "sliding_window_pattern", 4));
  same(without(without(given, "is_moe_layer"), "first_last_k_dense_replace"));
  EXPECT_FAILS(parse(without(given, "layer_types")), "\"sliding_window_pattern\"");
  expect_needed(given, {"n_group", "num_shared_experts", "routed_scaling_factor", "sliding_window",
                        "topk_group"});
  expect_refused(given, {{"first_last_k_dense_replace", 2},
                         {"is_moe_layer", {true, true, true, true}},
                         {"norm_topk_prob", false},
                         {"scoring_func", "softmax"}});
}

// Hy3's (huggingface tencent/Hy3).
TEST(LaterFamilies, Hy3) {
  const Json given = Json::parse(R"({
    "architectures": ["HYV3ForCausalLM"], "bos_token_id": 120000, "dtype": "bfloat16",
    "enable_attention_fp32_softmax": false, "enable_lm_head_fp32": true,
    "enable_moe_fp32_combine": false, "eod_token_id": 120026, "eos_token_id": 120025,
    "expert_hidden_dim": 1536, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.006, "intermediate_size": 13312,
    "max_position_embeddings": 262144, "model_type": "hy_v3", "moe_intermediate_size": 1536,
    "moe_router_enable_expert_bias": true, "moe_router_use_sigmoid": true,
    "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8,
    "num_hidden_layers": 80, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "num_shared_experts": 1, "output_router_logits": true, "pad_token_id": 120002,
    "qk_norm": true, "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"}, "route_norm": true,
    "router_scaling_factor": 2.826, "sep_token_id": 120007, "tie_word_embeddings": false,
    "transformers_version": "5.6.0", "use_cache": true, "use_grouped_mm": false,
    "vocab_size": 120832})");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(c.rope_theta, 11158840.0f);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_EQ(c.shared_experts * c.shared_width, 1536);
  EXPECT_EQ(std::get<GroupedTopK>(eval_spec(c.routing).select).groups, 1);
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(c.routing).weigh).scale, 2.826f);
  EXPECT_EQ(c.routing.coef.balance, 0);
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 295e9, 0.1e9);  // "295B"
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["model_type"], "hy_v3");
  EXPECT_EQ(saved["moe_router_use_sigmoid"], true);
  // as transformers has it
  std::vector<std::string> types(80, "sparse");
  types[0] = "dense";
  Json listed = with(without(given, "first_k_dense_replace"), "mlp_layer_types", types);
  for (const char* key : {"expert_hidden_dim", "moe_router_enable_expert_bias",
                          "moe_router_use_sigmoid", "qk_norm", "route_norm"})
    listed.erase(key);
  listed["attention_bias"] = false;
  listed["mlp_bias"] = false;
  EXPECT_EQ(config_to_json(parse(listed)), config_to_json(c));
  EXPECT_TRUE(parse(with(given, "attention_bias", true)).attention_out_bias);
  EXPECT_EQ(parse(with(given, "first_k_dense_replace", 3)).dense_first, 3);
  types[5] = "dense";
  EXPECT_FAILS(parse(with(given, "mlp_layer_types", types)),
               "\"mlp_layer_types\" has \"dense\" at layer 5");
  expect_needed(given, {"head_dim", "intermediate_size", "num_experts", "num_shared_experts",
                        "router_scaling_factor"});
  expect_refused(given, {{"mlp_bias", true},
                         {"moe_router_enable_expert_bias", false},
                         {"moe_router_use_sigmoid", false},
                         {"qk_norm", false},
                         {"route_norm", false}});
}

TEST(LaterFamilies, Qwen35WithoutExperts) {
  const Json experts = published("qwen3_5_35b_a3b");
  Json json = with(experts, "model_type", "qwen3_5");
  Json& text = json["text_config"];
  text["model_type"] = "qwen3_5_text";
  for (const char* key : {"moe_intermediate_size", "num_experts", "num_experts_per_tok",
                          "router_aux_loss_coef", "shared_expert_intermediate_size"})
    text.erase(key);
  EXPECT_FAILS(parse(json), "\"intermediate_size\" is missing");
  text["intermediate_size"] = 12288;
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.model_type, "qwen3_5_text");
  EXPECT_EQ(c.moe_layer_count(), 0);
  EXPECT_EQ(c.dense_width, 12288);
  EXPECT_EQ(std::ssize(c.linear_layers), 30);
  EXPECT_TRUE(c.attention_gate && c.norm_offset && !c.tied);
  EXPECT_EQ(c.attention(3).rotary_width, 64);
  const Json alone = parse_json(config_to_json(c), "x");
  EXPECT_EQ(alone["model_type"], "qwen3_5_text");
  EXPECT_EQ(config_to_json(parse(alone)), config_to_json(c));
  EXPECT_TRUE(parse(with(json, "tie_word_embeddings", true)).tied);
  EXPECT_FAILS(parse(with(alone, "num_experts", 8)), "\"num_experts\" is not known");
  EXPECT_FAILS(parse(with(alone, "attn_output_gate", false)), "only true");
}

// JetBrains/Mellum2-12B-A2.5B's.
Json mellum2() {
  Json json = {{"architectures", {"MellumForCausalLM"}},
               {"attention_bias", false},
               {"attention_dropout", 0.0},
               {"head_dim", 128},
               {"hidden_act", "silu"},
               {"hidden_size", 2304},
               {"initializer_range", 0.02},
               {"intermediate_size", 7168},
               {"max_position_embeddings", 131072},
               {"max_window_layers", 0},
               {"model_type", "mellum"},
               {"moe_intermediate_size", 896},
               {"mtp_layer_types", {"sliding_attention"}},
               {"mtp_mlp_layer_types", {"sparse"}},
               {"norm_topk_prob", true},
               {"num_attention_heads", 32},
               {"num_experts", 64},
               {"num_experts_per_tok", 8},
               {"num_hidden_layers", 28},
               {"num_key_value_heads", 4},
               {"output_router_logits", false},
               {"rms_norm_eps", 1e-06},
               {"router_aux_loss_coef", 0.001},
               {"sliding_window", 1024},
               {"tie_word_embeddings", false},
               {"use_cache", true},
               {"use_sliding_window", true},
               {"vocab_size", 98304},
               {"mlp_layer_types", std::vector<std::string>(28, "sparse")}};
  for (int i = 0; i < 28; ++i)
    json["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "sliding_attention");
  json["rope_parameters"]["full_attention"] = {{"rope_type", "yarn"},
                                               {"rope_theta", 500000.0},
                                               {"factor", 16.0},
                                               {"original_max_position_embeddings", 8192},
                                               {"beta_fast", 32.0},
                                               {"beta_slow", 1.0},
                                               {"attention_factor", 1.2772588722239782}};
  json["rope_parameters"]["sliding_attention"] = {{"rope_type", "default"},
                                                  {"rope_theta", 500000.0}};
  return json;
}

TEST(LaterFamilies, Mellum) {
  const Json given = mellum2();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.routing.recipe, "qwen3-moe");
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(c.attention(2).window, 1024);
  EXPECT_EQ(c.attention(3).window, 0);
  EXPECT_EQ(c.window_rope_theta, 500000);
  EXPECT_FLOAT_EQ(c.rope_scaling.attention_factor, 1.2772589f);
  EXPECT_EQ(count_params(c).total(), 12149923072);
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["model_type"], "mellum");
  EXPECT_FALSE(saved.contains("rope_theta"));
  EXPECT_EQ(config_to_json(parse(saved)), config_to_json(c));
  // transformers' defaults: no layer has a window, all route
  EXPECT_EQ(parse(without(given, "layer_types")).attention_window, 0);
  EXPECT_EQ(parse(without(given, "mlp_layer_types")).moe_layer_count(), 28);
  Json other = given;
  other["mlp_layer_types"][5] = "dense";
  EXPECT_FALSE(parse(other).is_moe(5));
  EXPECT_EQ(parse(other).moe_layer_count(), 27);
  EXPECT_EQ(parse(other).dense_width, 7168);
  other["mlp_layer_types"][5] = "shared";
  EXPECT_FAILS(parse(other), "\"mlp_layer_types\" has \"shared\" at layer 5");
  other["mlp_layer_types"] = std::vector<std::string>(28, "dense");
  EXPECT_FAILS(parse(other), "no layer routes by \"mlp_layer_types\"");
  EXPECT_FAILS(parse(with(given, "use_sliding_window", false)), "only true is of this family");
  EXPECT_FAILS(parse(with(given, "decoder_sparse_step", 2)), "only 1 is of this family");
  EXPECT_FAILS(parse(with(given, "mlp_only_layers", {3})), "only [] is of this family");
  EXPECT_FAILS(parse(without(given, "rope_parameters")), "\"rope_parameters\" is missing");
  EXPECT_FAILS(
      parse(with(given, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}})),
      "\"full_attention\" is missing");
  other = given;
  other["rope_parameters"]["sliding_attention"] = given["rope_parameters"]["full_attention"];
  EXPECT_FAILS(parse(other), "layers with a window turn unscaled");
  other = given;
  other["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.5;
  EXPECT_FAILS(parse(other), "\"partial_rotary_factor\" is 0.5");
  // It has no words for windows that turn by scaled frequencies.
  ModelConfig scaled = c;
  scaled.window_rope_theta = 0;
  EXPECT_EQ(architecture_of(scaled).model_type, "moe_cpp");
}

// The sizes of Granite's (huggingface ibm-granite/granite-swash-3b-a600m) in the words that
// transformers writes.
Json granite_swash() {
  Json json = Json::parse(R"({
    "architectures": ["GraniteMoeSWAForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "attention_multiplier": 0.015625, "dtype": "bfloat16",
    "embedding_multiplier": 12, "hidden_act": "silu", "hidden_size": 1280,
    "initializer_range": 0.02, "intermediate_size": 512, "layer_rope_theta": null,
    "logits_scaling": 5, "max_position_embeddings": 8192, "model_type": "granitemoe_swa",
    "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "num_local_experts": 48, "output_router_logits": false,
    "residual_multiplier": 0.26, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "shared_intermediate_size": 1280, "sliding_window": 128,
    "tie_word_embeddings": true, "use_cache": true, "vocab_size": 100352})");
  for (int i = 0; i < 28; ++i)
    json["layer_types"].push_back(i % 4 == 3 || i == 0 ? "full_attention" : "sliding_attention");
  return json;
}

TEST(LaterFamilies, GraniteWithWindows) {
  const Json given = granite_swash();
  const ModelConfig c = parse(given);
  EXPECT_TRUE(c.attention_sinks && c.tied);
  EXPECT_EQ(c.attention(0).window, 0);
  EXPECT_EQ(c.attention(4).window, 128);
  EXPECT_EQ(c.attention(27).window, 0);
  EXPECT_EQ(c.multipliers.attention, 0.015625f);
  EXPECT_EQ(c.shared_width, 1280);
  EXPECT_EQ(c.routing.recipe, "mixtral");
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 3.02e9, 0.01e9);  // "3B"
  const auto same = [](const ModelConfig& a, const ModelConfig& b) {
    EXPECT_EQ(config_to_json(a), config_to_json(b));
  };
  EXPECT_EQ(parse_json(config_to_json(c), "x")["model_type"], "granitemoe_swa");
  same(parse(parse_json(config_to_json(c), "x")), c);
  std::vector<double> bases(28, 10000);
  const auto with_bases = [&] { return parse(with(given, "layer_rope_theta", bases)); };
  same(with_bases(), c);
  bases.assign(28, 50000);
  bases[0] = bases[27] = 0;
  const ModelConfig still = with_bases();
  EXPECT_EQ(still.rope_theta, 50000);
  EXPECT_EQ(still.nope_layers, (std::vector<int64_t>{0, 27}));
  same(parse(parse_json(config_to_json(still), "x")), still);
  for (const double wrong : {10000.0, -1.0}) {
    bases[5] = wrong;
    EXPECT_FAILS(with_bases(), "at layer 5; layers that turn have one base here, above 0");
  }
  bases.pop_back();
  EXPECT_FAILS(with_bases(), "\"layer_rope_theta\" lists 27 layers");
  // transformers' default: each fourth layer from the first on has no window
  const ModelConfig otherwise = parse(without(given, "layer_types"));
  EXPECT_EQ(otherwise.attention(3).window, 128);
  EXPECT_EQ(otherwise.attention(4).window, 0);
  expect_needed(given, {"attention_multiplier", "num_local_experts", "shared_intermediate_size",
                        "sliding_window"});
  EXPECT_FAILS(parse(with(given, "use_sinks", false)), "\"use_sinks\" is not known");
}

// Granite-4.0-H-Tiny's sizes (huggingface ibm-granite/granite-4.0-h-tiny), in which four layers of
// forty have attention.
Json granite_h_tiny() {
  Json json = Json::parse(R"({
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "attention_multiplier": 0.0078125, "embedding_multiplier": 12,
    "hidden_act": "silu", "hidden_size": 1536, "init_method": "mup", "initializer_range": 0.1,
    "intermediate_size": 512, "logits_scaling": 6, "mamba_chunk_size": 256,
    "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48, "mamba_proj_bias": false,
    "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm", "num_attention_heads": 12, "num_experts_per_tok": 6,
    "num_hidden_layers": 40, "num_key_value_heads": 4, "num_local_experts": 64,
    "output_router_logits": false, "position_embedding_type": "nope",
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000, "router_aux_loss_coef": 0.0, "shared_intermediate_size": 1024,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
    "vocab_size": 100352})");
  for (int i = 0; i < 40; ++i) json["layer_types"].push_back(i % 10 == 5 ? "attention" : "mamba");
  return json;
}

TEST(LaterFamilies, GraniteWithStateSpaces) {
  const Json given = granite_h_tiny();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "granitemoehybrid");
  EXPECT_EQ(std::ssize(c.scan_layers), 36);
  EXPECT_EQ(c.nope_layers, (std::vector<int64_t>{5, 15, 25, 35}));
  EXPECT_EQ(c.scan.channels(), 3328);
  EXPECT_EQ(c.state_numbers(0), 3 * 3328 + 48 * 64 * 128);
  EXPECT_EQ(c.state_numbers(5), 0);
  EXPECT_TRUE(c.scan.conv_bias && c.tied);
  EXPECT_EQ(c.shared_width, 1024);
  EXPECT_EQ(c.routing.recipe, "mixtral");
  EXPECT_EQ(count_params(c).total(), 6939037248);  // "7B"
  const auto same = [](const Json& json, const ModelConfig& as) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(as)) << json.dump();
  };
  same(parse_json(config_to_json(c), "x"), c);
  // As transformers 5 writes it.
  Json newer = with(with(given, "position_embedding_type", nullptr), "layers_block_type",
                    given["layer_types"]);
  newer.erase("layer_types");
  for (Json& type : newer["layers_block_type"])
    type = type == "mamba" ? "linear_attention" : "full_attention";
  newer["time_step_limit"] = {0.0, {{"__float__", "Infinity"}}};
  same(newer, c);
  std::string text = given.dump();  // as transformers 4 writes a number without end
  text.insert(1, R"("time_step_limit": [0.0, Infinity], )");
  EXPECT_EQ(config_to_json(parse_config(text, "config.json")), config_to_json(c));
  same(with(given, "mamba_d_head", "auto"), c);
  same(without(given, "mamba_d_head"), c);

  // Without experts, as Granite-4.0-H-1B.
  Json dense = with(with(given, "num_local_experts", 0), "num_experts_per_tok", 0);
  dense["intermediate_size"] = dense["shared_intermediate_size"] = 4096;
  const ModelConfig one = parse(dense);
  EXPECT_EQ(one.moe_layer_count(), 0);
  EXPECT_EQ(count_params(one).total(), 1461538368);
  same(parse_json(config_to_json(one), "x"), one);
  // Without state spaces, as Granite-4.0-Micro, it is Granite by another name.
  Json all = with(dense, "position_embedding_type", "rope");
  for (Json& type : all["layer_types"]) type = "attention";
  const ModelConfig micro = parse(all);
  EXPECT_FALSE(micro.has_states());
  EXPECT_TRUE(micro.nope_layers.empty());
  EXPECT_EQ(micro.model_type, "granitemoehybrid");
  same(parse_json(config_to_json(micro), "x"), micro);

  EXPECT_FAILS(parse(with(given, "mamba_proj_bias", true)), "\"mamba_proj_bias\" is true");
  EXPECT_FAILS(parse(with(given, "mamba_d_head", 32)), "\"mamba_d_head\" is 32");
  EXPECT_FAILS(parse(with(given, "mamba_n_heads", 36)), "\"mamba_n_heads\" is 36");
  EXPECT_FAILS(parse(with(given, "time_step_limit", {0.001, 0.1})), "have no limits here");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");
  EXPECT_FAILS(parse(with(given, "position_embedding_type", "learned")), "rope and nope are known");
  EXPECT_FAILS(parse(without(given, "position_embedding_type")), "is missing");
  EXPECT_FAILS(parse(without(given, "layer_types")), "\"layer_types\" is missing");
  EXPECT_FAILS(parse(with(given, "shared_intermediate_size", 0)),
               "\"shared_intermediate_size\" is 0");
  Json other = given;
  other["layer_types"][7] = "mamba2";
  EXPECT_FAILS(parse(other), "\"layer_types\" has \"mamba2\" at layer 7");
  ModelConfig mixed = c;
  mixed.nope_layers = {5};
  EXPECT_EQ(architecture_of(mixed).model_type, "moe_cpp");
}

// Kimi-Linear-48B-A3B's, which counts layers from 1 (huggingface
// moonshotai/Kimi-Linear-48B-A3B-Instruct).
TEST(LaterFamilies, KimiLinear) {
  Json full = Json::array({4, 8, 12, 16, 20, 24, 27}), linear = Json::array();
  for (int64_t layer = 1; layer <= 27; ++layer)
    if (std::find(full.begin(), full.end(), layer) == full.end()) linear.push_back(layer);
  const Json own = {{"full_attn_layers", full},
                    {"head_dim", 128},
                    {"kda_layers", linear},
                    {"num_heads", 32},
                    {"short_conv_kernel_size", 4}};
  const Json given = {{"architectures", {"KimiLinearForCausalLM"}},
                      {"first_k_dense_replace", 1},
                      {"head_dim", 72},
                      {"hidden_act", "silu"},
                      {"hidden_size", 2304},
                      {"initializer_range", 0.02},
                      {"intermediate_size", 9216},
                      {"kv_lora_rank", 512},
                      {"linear_attn_config", own},
                      {"mla_use_nope", true},
                      {"model_max_length", 1048576},
                      {"model_type", "kimi_linear"},
                      {"moe_intermediate_size", 1024},
                      {"moe_layer_freq", 1},
                      {"moe_renormalize", true},
                      {"moe_router_activation_func", "sigmoid"},
                      {"num_attention_heads", 32},
                      {"num_expert_group", 1},
                      {"num_experts", 256},
                      {"num_experts_per_token", 8},
                      {"num_hidden_layers", 27},
                      {"num_key_value_heads", 32},
                      {"num_nextn_predict_layers", 0},
                      {"num_shared_experts", 1},
                      {"q_lora_rank", nullptr},
                      {"qk_nope_head_dim", 128},
                      {"qk_rope_head_dim", 64},
                      {"rms_norm_eps", 1e-05},
                      {"rope_scaling", nullptr},
                      {"rope_theta", 10000.0},
                      {"routed_scaling_factor", 2.446},
                      {"tie_word_embeddings", false},
                      {"topk_group", 1},
                      {"use_cache", true},
                      {"use_grouped_topk", true},
                      {"v_head_dim", 128},
                      {"vocab_size", 163840}};
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "kimi_linear");
  EXPECT_EQ(std::ssize(c.linear_layers), 20);
  EXPECT_EQ(c.nope_layers, (std::vector<int64_t>{3, 7, 11, 15, 19, 23, 26}));
  EXPECT_EQ(c.linear.decays(), 4096);
  EXPECT_EQ(c.attention(3).rotary_width, 0);
  EXPECT_EQ(c.attention(3).shared_width, 64);
  EXPECT_EQ(c.attention(3).cached_width(), 576);
  EXPECT_NEAR(static_cast<double>(count_params(c).total()) / 1e9, 49.1, 0.2);
  const auto same = [&](const Json& json) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(c)) << json.dump();
  };
  same(parse_json(config_to_json(c), "x"));
  // As transformers 5 writes it.
  std::vector<std::string> types(27, "linear_attention");
  for (const int64_t layer : c.nope_layers) types[static_cast<size_t>(layer)] = "full_attention";
  Json flat = without(given, "linear_attn_config");
  flat["layer_types"] = types;
  flat["linear_head_dim"] = 128;
  flat["linear_num_heads"] = 32;
  flat["linear_conv_kernel_dim"] = 4;
  same(flat);
  same(with(flat, "linear_attn_config", own));

  types[3] = "linear_attention";
  EXPECT_FAILS(parse(with(with(flat, "linear_attn_config", own), "layer_types", types)),
               "make them equal");
  Json twice = own;
  twice["kda_layers"].push_back(4);
  EXPECT_FAILS(parse(with(given, "linear_attn_config", twice)), "stands once");
  twice["kda_layers"] = Json::array({1});
  EXPECT_FAILS(parse(with(given, "linear_attn_config", twice)), "do not list all");
  EXPECT_FAILS(parse(with(given, "mla_use_nope", false)), "\"mla_use_nope\" is false");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");
}

// DeepSeek-V3.2-Exp's is V3.1's with the sizes of the indexers.
TEST(LaterFamilies, DeepSeekV32) {
  const Json dense = published("deepseek_v3_1");
  Json given = without(dense, "auto_map");
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"architectures", Json::array({"DeepseekV32ForCausalLM"})},
        {"model_type", "deepseek_v32"},
        {"index_head_dim", 128},
        {"index_n_heads", 64},
        {"index_topk", 2048}})
    given[key] = value;
  const ModelConfig c = parse(given), v3 = parse(dense);
  EXPECT_EQ(c.model_type, "deepseek_v32");
  EXPECT_EQ(c.context, v3.context);
  EXPECT_EQ(c.sparse.top, 2048);
  EXPECT_EQ(c.attention(60).index_heads, 64);
  EXPECT_EQ(c.attention(60).index_width, 128);
  EXPECT_FALSE(v3.sparse.present());
  // What else it is is V3.
  ModelConfig dense_one = c;
  dense_one.sparse = {};
  dense_one.model_type = v3.model_type;
  EXPECT_EQ(config_to_json(dense_one), config_to_json(v3));
  EXPECT_EQ(parse_json(config_to_json(c), "x")["model_type"], "deepseek_v32");
  EXPECT_EQ(config_to_json(parse(parse_json(config_to_json(c), "x"))), config_to_json(c));
  EXPECT_EQ(count_params(c).total() - count_params(v3).total(), count_params(c).frozen);
  const auto same = [&](const Json& json) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(c)) << json.dump();
  };
  // As transformers 5 writes it, and as it once did.
  std::vector<std::string> types(61, "sparse");
  std::fill_n(types.begin(), 3, "dense");
  Json listed = with(with(given, "mlp_layer_types", types), "mlp_bias", false);
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"head_dim", 64}, {"qk_head_dim", 192}, {"num_experts", 256}})
    listed[key] = value;
  for (const char* type : {"indexed_attention", "deepseek_sparse_attention"})
    same(with(listed, "layer_types", std::vector<std::string>(61, type)));
  same(without(listed, "first_k_dense_replace"));
  for (const char* key : {"moe_layer_freq", "scoring_func"}) same(without(given, key));
  expect_needed(given,
                {"attention_bias", "first_k_dense_replace", "index_head_dim", "index_n_heads",
                 "index_topk", "kv_lora_rank", "n_group", "q_lora_rank", "routed_scaling_factor"});
  expect_refused(given, {{"attention_bias", true},
                         {"indexer_rope_interleave", true},
                         {"mlp_bias", true},
                         {"moe_layer_freq", 2},
                         {"norm_topk_prob", false},
                         {"num_experts", 64},
                         {"qk_head_dim", 128},
                         {"rope_interleave", false},
                         {"scoring_func", "softmax"}});
  EXPECT_FAILS(parse(with(given, "index_topk", 0)), "\"index_topk\" is 0");
  EXPECT_FAILS(parse(with(given, "q_lora_rank", nullptr)), "\"q_lora_rank\"");
  EXPECT_FAILS(parse(with(given, "layer_types", std::vector<std::string>(61, "full_attention"))),
               "\"layer_types\" has \"full_attention\"; of this family all layers are "
               "\"indexed_attention\"");
  EXPECT_FAILS(parse(with(dense, "index_topk", 2048)), "\"index_topk\" is not known");
}

// GLM-5.2's (huggingface zai-org/GLM-5.2), whose "head_dim" its code does not read.
Json glm_52() {
  Json json = Json::parse(R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "ep_size": 1,
    "first_k_dense_replace": 3, "head_dim": 192, "hidden_act": "silu", "hidden_size": 6144,
    "index_head_dim": 128, "index_n_heads": 32, "index_share_for_mtp_iteration": true,
    "index_skip_topk_offset": 3, "index_topk": 2048, "index_topk_freq": 4,
    "index_topk_pattern": null, "indexer_rope_interleave": true, "initializer_range": 0.02,
    "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 1048576,
    "model_type": "glm_moe_dsa", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "moe_router_dtype": "float32", "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 78, "num_key_value_heads": 64, "num_nextn_predict_layers": 1,
    "pad_token_id": 154820, "pretraining_tp": 1, "q_lora_rank": 2048, "qk_head_dim": 256,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_interleave": true, "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 1, "topk_method": "noaux_tc", "transformers_version": "5.12.0",
    "use_cache": true, "v_head_dim": 256, "vocab_size": 154880})");
  for (int i = 0; i < 78; ++i) {
    json["indexer_types"].push_back(i < 3 || i % 4 == 2 ? "full" : "shared");
    json["mlp_layer_types"].push_back(i < 3 ? "dense" : "sparse");
  }
  return json;
}

TEST(LaterFamilies, Glm5) {
  const Json given = glm_52();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "glm_moe_dsa");
  EXPECT_EQ(c.context, 1048576);
  EXPECT_EQ(c.sparse.top, 2048);
  EXPECT_EQ(c.sparse.followers.size(), 78u - 21u);
  EXPECT_EQ(c.attention(6).index_heads, 32);
  EXPECT_EQ(c.attention(7).index_heads, 0);
  EXPECT_EQ(c.dense_first, 3);
  EXPECT_EQ(c.rope_theta, 8000000);
  EXPECT_EQ(c.attention(0).rotary_width, 64);
  EXPECT_EQ(c.head_width, 256);
  EXPECT_EQ(c.latent.query_width, 2048);
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(c.routing).weigh).scale, 2.5f);
  // 753329921024 numbers lie in its files, those of a layer that predicts a further token and its
  // indexer among them.
  EXPECT_EQ(count_params(c).frozen, 21 * ((32 * 2048 + 6144) * 128 + 32 * 6144 + 2 * 128));
  EXPECT_EQ(count_params(c).total(), 743180190720 + count_params(c).frozen);
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["model_type"], "glm_moe_dsa");
  EXPECT_EQ(saved["indexer_types"], given["indexer_types"]);
  const auto same = [&](const Json& json) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(c)) << json.dump();
  };
  same(saved);
  same(without(given, "mlp_layer_types"));
  same(with(given, "head_dim", 64));
  same(without(given, "moe_router_dtype"));
  // What the list says otherwise: how many share one, a pattern, and nothing, which GLM-5 has.
  const Json unlisted = without(given, "indexer_types");
  same(unlisted);
  std::string letters(78, 'S');
  for (const int64_t i : {0, 1, 2}) letters[static_cast<size_t>(i)] = 'F';
  for (size_t i = 2; i < 78; i += 4) letters[i] = 'F';
  same(with(unlisted, "index_topk_pattern", letters));
  same(with(without(unlisted, "index_topk_freq"), "index_topk_pattern", given["indexer_types"]));
  EXPECT_TRUE(parse(without(unlisted, "index_topk_freq")).sparse.followers.empty());
  expect_needed(without(given, "mlp_layer_types"), {"first_k_dense_replace", "index_topk"});
  expect_refused(
      given,
      {{"first_k_dense_replace", 1}, {"indexer_rope_interleave", false}, {"qk_head_dim", 192}});
  letters[0] = 'S';
  EXPECT_FAILS(parse(with(unlisted, "index_topk_pattern", letters)), "layer 0 has no indexer");
  letters[0] = 'X';
  EXPECT_FAILS(parse(with(unlisted, "index_topk_pattern", letters)),
               "\"index_topk_pattern\" has \"?\" at layer 0");
  EXPECT_FAILS(parse(with(given, "indexer_types", std::vector<std::string>(77, "full"))),
               "indexers of 77 layers are listed, \"num_hidden_layers\" is 78");
  EXPECT_FAILS(parse(with(given, "index_kpool", 4)), "\"index_kpool\" is not known");
}

}  // namespace
}  // namespace moe::test::later_families_test
