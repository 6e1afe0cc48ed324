// Laguna's configs, as transformers writes them and with words that some of its checkpoints have
// beside those, and the names of its tensors.
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

namespace moe::test::laguna_test {
namespace {

// The defaults of the class (transformers:laguna/configuration_laguna.py), and lists as its models
// have them: each fourth layer is without a window and has fewer heads.
Json laguna() {
  Json json = Json::parse(R"({
    "architectures": ["LagunaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "gating": true, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "model_type": "laguna", "moe_apply_router_weight_on_input": false,
    "moe_intermediate_size": 512, "moe_routed_scaling_factor": 2.5,
    "moe_router_logit_softcapping": 0.0, "num_attention_heads": 48, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 32.0,
                         "original_max_position_embeddings": 4096, "beta_fast": 64.0,
                         "beta_slow": 1.0, "attention_factor": 1.0,
                         "partial_rotary_factor": 0.5},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0,
                            "partial_rotary_factor": 1.0}},
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
    "sliding_window": 512, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 100352})");
  for (int64_t i = 0; i < 40; ++i) {
    json["layer_types"].push_back(i % 4 == 0 ? "full_attention" : "sliding_attention");
    json["num_attention_heads_per_layer"].push_back(i % 4 == 0 ? 48 : 64);
    json["mlp_layer_types"].push_back(i == 0 ? "dense" : "sparse");
  }
  return json;
}

TEST(Laguna, IsReadAsWhatItIs) {
  const Json given = laguna();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "laguna");
  EXPECT_EQ(c.dense_first, 1);
  EXPECT_EQ(c.moe_layer_count(), 39);
  EXPECT_EQ(c.routing.recipe, "deepseek-v3");
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(c.routing).weigh).scale, 2.5f);
  EXPECT_EQ(c.routing.coef.balance, 0.008f);
  EXPECT_TRUE(c.shared_experts == 1 && !c.shared_gate);
  const AttentionShape full = c.attention(0), windowed = c.attention(1);
  EXPECT_EQ(full.heads, 48);
  EXPECT_EQ(windowed.heads, 64);
  EXPECT_EQ(full.kv_heads, 8);
  EXPECT_EQ(windowed.kv_heads, 8);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(windowed.window, 512);
  EXPECT_EQ(full.rotary_width, 64);
  EXPECT_EQ(windowed.rotary_width, 128);
  EXPECT_EQ(full.gates, 48);
  EXPECT_TRUE(full.gate_softplus && windowed.window_turns && !full.window_turns);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::yarn);
  const auto attention = [](int64_t heads) {
    return 2048 * (2 * heads * 128 + 2 * 8 * 128 + heads) + 2 * 128;
  };
  const int64_t row = 3 * 2048;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{100352} * 2048 + 2048 + 40 * 2 * 2048 +
                                         10 * attention(48) + 30 * attention(64) + row * 8192 +
                                         39 * (256 * 2048 + 257 * row * 512));
  EXPECT_EQ(count_params(c).buffers, 39 * 256);
  expect_same(parse_json(config_to_json(c), "x"), c);
  EXPECT_EQ(parse_json(config_to_json(c), "x")["num_attention_heads"], 48);
}

TEST(Laguna, OfOtherParts) {
  const Json given = laguna();
  const ModelConfig c = parse(given);
  expect_same(with(given, "gating", "per-head"), c);
  // beside the words of transformers
  Json more = given;
  more.update(Json::parse(R"({"decoder_sparse_step": 1, "mlp_only_layers": [0],
                              "norm_topk_prob": true, "partial_rotary_factor": 0.5,
                              "rope_theta": 500000.0, "qkv_bias": false})"));
  more["gating_types"] = std::vector<std::string>(40, "per_head");
  more["rope_parameters"]["original_max_position_embeddings"] = 4096;
  expect_same(more, c);
  expect_same(without(given, "mlp_layer_types"), c);
  const ModelConfig elements = parse(with(given, "gating", "per-element"));
  EXPECT_EQ(elements.attention(1).gates, 64 * 128);
  const ModelConfig alike = parse(without(given, "num_attention_heads_per_layer"));
  EXPECT_EQ(alike.attention(1).heads, 48);
  EXPECT_FALSE(alike.full.present());
  // Without lists no layer has a window.
  const ModelConfig whole =
      parse(without(without(given, "layer_types"), "num_attention_heads_per_layer"));
  EXPECT_EQ(whole.attention(1).window, 0);
  EXPECT_EQ(whole.attention(1).rotary_width, 64);
  const ModelConfig biased = parse(with(given, "attention_bias", true));
  EXPECT_TRUE(biased.attention_bias && biased.attention_out_bias);
  for (const ModelConfig& one : {elements, alike, whole, biased})
    expect_same(parse_json(config_to_json(one), "x"), one);
}

TEST(Laguna, Refuses) {
  const Json given = laguna();
  expect_needed(given, {"gating", "head_dim", "moe_routed_scaling_factor", "rope_parameters",
                        "shared_expert_intermediate_size", "sliding_window"});
  expect_refused(given, {{"gating", false},
                         {"gating", "per-token"},
                         {"moe_apply_router_weight_on_input", true},
                         {"moe_router_logit_softcapping", 30.0},
                         {"norm_topk_prob", false},
                         {"qkv_bias", true},
                         {"mlp_only_layers", {0, 1}}});
  Json other = given;
  other["num_attention_heads_per_layer"][5] = 32;
  EXPECT_FAILS(parse(other), "\"num_attention_heads_per_layer\" has 32 at layer 5");
  other = given;
  other["num_attention_heads_per_layer"].push_back(64);
  EXPECT_FAILS(parse(other), "\"num_attention_heads_per_layer\" lists 41 layers");
  other = given;
  other["mlp_layer_types"][7] = "dense";
  EXPECT_FAILS(parse(other), "\"mlp_layer_types\" has \"dense\" at layer 7");
  EXPECT_FAILS(parse(with(given, "gating_types", std::vector<std::string>{"per_element"})),
               "\"gating_types\"");
}

// What it cannot say others can.
TEST(Laguna, SaysNoMoreThanItHas) {
  for (const auto change :
       {+[](ModelConfig& c) { c.gate_softplus = c.head_gates = false; },
        +[](ModelConfig& c) { c.full.kv_heads = 4; }, +[](ModelConfig& c) { c.shared_experts = 2; },
        +[](ModelConfig& c) { c.qk_norm = QkNorm::none; }}) {
    ModelConfig c = parse(laguna());
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
}

TEST(Laguna, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("laguna"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers." + name));
  };
  EXPECT_EQ(shape("0.self_attn.g_proj.weight"), "f32 [2, 8]");
  EXPECT_EQ(shape("1.self_attn.g_proj.weight"), "f32 [4, 8]");
  EXPECT_EQ(shape("0.self_attn.q_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("1.self_attn.q_proj.weight"), "f32 [24, 8]");
  EXPECT_EQ(shape("1.self_attn.o_proj.weight"), "f32 [8, 24]");
  EXPECT_EQ(shape("1.self_attn.q_norm.weight"), "f32 [6]");
  EXPECT_EQ(shape("0.mlp.gate_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("1.mlp.shared_expert.gate_proj.weight"), "f32 [10, 8]");
  EXPECT_EQ(shape("1.mlp.experts.2.gate_proj.weight"), "f32 [6, 8]");
  EXPECT_EQ(shape("1.mlp.experts.e_score_correction_bias"), "f32 [3]");
}

}  // namespace
}  // namespace moe::test::laguna_test
