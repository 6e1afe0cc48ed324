// MiMo-V2-Flash's configs, as transformers writes them and as they were published, and the names of
// its tensors.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "hub/saved_folder.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::mimo_test {
namespace {

bool is_full(int64_t layer) { return layer == 0 || (layer + 1) % 6 == 0; }

Json turning(double theta, double share) {
  return {{"rope_type", "default"}, {"rope_theta", theta}, {"partial_rotary_factor", share}};
}

// The defaults of the class, and what it makes of them
// (transformers:mimo_v2_flash/configuration_mimo_v2_flash.py).
Json mimo() {
  Json json = Json::parse(R"({
    "architectures": ["MiMoV2FlashForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 192,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 16384, "max_position_embeddings": 131072,
    "model_type": "mimo_v2_flash", "moe_intermediate_size": 2048, "n_group": 1,
    "n_routed_experts": 256, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-05, "routed_scaling_factor": 1.0,
    "sliding_window": 129, "tie_word_embeddings": false, "topk_group": 1, "use_cache": true,
    "v_head_dim": 128, "vocab_size": 152576})");
  for (int64_t i = 0; i < 48; ++i) {
    json["layer_types"].push_back(is_full(i) ? "full_attention" : "sliding_attention");
    json["mlp_layer_types"].push_back(i == 0 ? "dense" : "sparse");
  }
  json["rope_parameters"] = {{"full_attention", turning(5e6, 0.334)},
                             {"sliding_attention", turning(1e4, 0.334)}};
  return json;
}

// The words of its first configs, as other programs read them.
Json mimo_as_published() {
  Json json = mimo();
  for (const char* key : {"layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps"})
    json.erase(key);
  json.update(Json::parse(R"({
    "add_full_attention_sink_bias": false, "add_swa_attention_sink_bias": true,
    "attention_chunk_size": 128, "hybrid_block_size": null, "layernorm_epsilon": 1e-05,
    "n_shared_experts": null, "partial_rotary_factor": 0.334, "rope_scaling": null,
    "rope_theta": 5000000, "routed_scaling_factor": null, "scoring_func": "sigmoid",
    "sliding_window": 128, "sliding_window_size": 128, "swa_head_dim": 192,
    "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_rope_theta": 10000,
    "swa_v_head_dim": 128, "topk_method": "noaux_tc"})"));
  for (int64_t i = 0; i < 48; ++i) {
    json["hybrid_layer_pattern"].push_back(is_full(i) ? 0 : 1);
    json["moe_layer_freq"].push_back(i == 0 ? 0 : 1);
  }
  return json;
}

TEST(Mimo, IsReadAsWhatItIs) {
  const Json given = mimo();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "mimo_v2_flash");
  EXPECT_EQ(c.moe_layer_count(), 47);
  EXPECT_EQ(c.dense_first, 1);
  EXPECT_EQ(c.routing.recipe, "deepseek-v3");
  EXPECT_EQ(c.shared_experts, 0);
  const AttentionShape full = c.attention(0), windowed = c.attention(1);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(windowed.window, 129);
  EXPECT_EQ(full.kv_heads, 4);
  EXPECT_EQ(windowed.kv_heads, 8);
  EXPECT_FALSE(full.sinks);
  EXPECT_TRUE(windowed.sinks && windowed.window_turns);
  for (const AttentionShape& shape : {full, windowed}) {
    EXPECT_EQ(shape.heads, 64);
    EXPECT_EQ(shape.key_width, 192);
    EXPECT_EQ(shape.value_width, 128);
    EXPECT_EQ(shape.value_factor, 0.707f);
    EXPECT_EQ(shape.rotary_width, 64);
  }
  EXPECT_EQ(c.rope_theta, 5e6f);
  EXPECT_EQ(c.window_rope_theta, 1e4f);
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 309e9, 1e9);  // "309B"
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_same(mimo_as_published(), c);
  // as transformers saves it that has read those
  Json both = mimo_as_published();
  both.update(given);
  both["sliding_window"] = 129;
  expect_same(both, c);
}

TEST(Mimo, OfOtherParts) {
  const Json given = mimo();
  Json parts = given;
  parts["rope_parameters"]["sliding_attention"]["partial_rotary_factor"] = 1.0;
  const ModelConfig c = parse(parts);
  EXPECT_EQ(c.attention(0).rotary_width, 64);
  EXPECT_EQ(c.attention(1).rotary_width, 192);
  expect_same(parse_json(config_to_json(c), "x"), c);
  const ModelConfig plain = parse(with(given, "attention_value_scale", nullptr));
  EXPECT_EQ(plain.value_factor, 1);
  Json whole = with(given, "layer_types", std::vector<std::string>(48, "full_attention"));
  const ModelConfig full = parse(whole);
  EXPECT_EQ(full.attention(1).kv_heads, 4);
  EXPECT_EQ(full.window_rope_theta, 0);
  EXPECT_FALSE(full.attention(1).sinks);
  const ModelConfig wide = parse(with(given, "v_head_dim", 192));
  EXPECT_EQ(wide.value_width, 0);
  for (const ModelConfig& one : {plain, full, wide})
    expect_same(parse_json(config_to_json(one), "x"), one);
}

TEST(Mimo, Refuses) {
  const Json given = mimo(), published = mimo_as_published();
  expect_needed(given,
                {"attention_bias", "attention_value_scale", "head_dim", "layer_types", "n_group",
                 "rms_norm_eps", "rope_parameters", "sliding_window", "v_head_dim"});
  expect_refused(given, {{"norm_topk_prob", false},
                         {"n_shared_experts", 1},
                         {"add_full_attention_sink_bias", true},
                         {"add_swa_attention_sink_bias", false},
                         {"scoring_func", "softmax"}});
  expect_refused(published, {{"swa_num_key_value_heads", 4},
                             {"swa_num_attention_heads", 32},
                             {"swa_head_dim", 128},
                             {"swa_v_head_dim", 192},
                             {"sliding_window_size", 256},
                             {"hybrid_block_size", 6}});
  Json other = published;
  other["moe_layer_freq"][3] = 0;
  EXPECT_FAILS(parse(other), "dense layers are supported before all that route");
  other = published;
  other["hybrid_layer_pattern"][3] = 2;
  EXPECT_FAILS(parse(other), "\"hybrid_layer_pattern\" has 2 at layer 3");
  other = given;
  other["rope_parameters"]["sliding_attention"].erase("partial_rotary_factor");
  EXPECT_FAILS(parse(other), "\"partial_rotary_factor\" is missing");
  other = given;
  other["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"},
                                                   {"factor", 2.0},
                                                   {"rope_theta", 1e4},
                                                   {"partial_rotary_factor", 0.334}};
  EXPECT_FAILS(parse(other), "layers with a window turn unscaled");
}

// What it cannot say others can.
TEST(Mimo, SaysNoMoreThanItHas) {
  const auto type_of = [](auto change) {
    ModelConfig c = parse(mimo());
    change(c);
    return architecture_of(c).model_type;
  };
  EXPECT_EQ(type_of([](ModelConfig&) {}), "mimo_v2_flash");
  for (const auto change : {+[](ModelConfig& c) { c.window_sinks = false; },
                            +[](ModelConfig& c) { c.full.kv_heads = 8; },
                            +[](ModelConfig& c) { c.qk_norm = QkNorm::head; },
                            +[](ModelConfig& c) { c.nope_layers = {3}; }}) {
    EXPECT_EQ(type_of(change), "moe_cpp");
    ModelConfig c = parse(mimo());
    change(c);
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
}

TEST(Mimo, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("mimo_v2_flash"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers." + name));
  };
  EXPECT_EQ(shape("0.self_attn.attention_sink_bias"), "f32 [4]");
  EXPECT_FALSE(file.contains("model.layers.1.self_attn.attention_sink_bias"));
  EXPECT_EQ(shape("0.self_attn.k_proj.weight"), "f32 [24, 8]");
  EXPECT_EQ(shape("1.self_attn.k_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("0.self_attn.v_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("1.self_attn.v_proj.weight"), "f32 [6, 8]");
  EXPECT_EQ(shape("1.self_attn.o_proj.weight"), "f32 [8, 12]");
  EXPECT_EQ(shape("0.mlp.gate_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("1.mlp.experts.2.gate_proj.weight"), "f32 [6, 8]");
  EXPECT_EQ(shape("1.mlp.gate.weight"), "f32 [3, 8]");
  EXPECT_EQ(shape("1.mlp.gate.e_score_correction_bias"), "f32 [3]");
}

}  // namespace
}  // namespace moe::test::mimo_test
