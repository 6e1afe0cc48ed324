// Ling 3.0 by a config as it is published, by one as transformers saves it, and by how its tensors
// are called.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "hub/saved_folder.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::ling3_test {
namespace {

// Ling-3.0-tiny's sizes in the words of its own configuration (github sgl-project/sglang-jax has a
// copy of configuration_bailing_moe_v3.py).
Json ling_tiny() {
  return Json::parse(R"({
    "architectures": ["BailingMoeV3ForCausalLM"], "attention_dropout": 0.0,
    "first_k_dense_replace": 1, "gated_attention_proj_granularity_type": "head_wise",
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02,
    "intermediate_size": 4608, "kda_lower_bound": -5.0, "kda_safe_gate": true,
    "kv_lora_rank": 512, "layer_group_size": 4, "max_position_embeddings": 131072,
    "model_type": "bailing_hybrid", "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": true, "moe_shared_expert_intermediate_size": 512,
    "mtp_loss_scaling_factor": 0, "mtp_use_kda": false, "n_group": 8, "no_kda_lora": true,
    "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 16,
    "num_nextn_predict_layers": 1, "num_shared_experts": 1, "partial_rotary_factor": 0.5,
    "q_lora_rank": 256, "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_interleave": true, "rope_scaling": null,
    "rope_theta": 6000000.0, "rotary_dim": 64, "routed_scaling_factor": 2.5,
    "router_dtype": "fp32", "score_function": "sigmoid", "scoring_func": "sigmoid",
    "short_conv_kernel_size": 4, "tie_word_embeddings": false, "topk_group": 4,
    "topk_method": "noaux_tc", "use_bias": false, "use_cache": true, "use_mla_nope": false,
    "use_qk_norm": true, "use_qkv_bias": false, "v_head_dim": 128, "vocab_size": 157184})");
}

// The same without query latents, as transformers 5.23 would save it.
Json saved_by_transformers() {
  Json json = Json::parse(R"({
    "architectures": ["BailingHybridForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": 156895,
    "first_k_dense_replace": 1, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1536,
    "initializer_range": 0.02, "intermediate_size": 4608, "kda_lower_bound": -5.0,
    "kda_safe_gate": true, "kv_lora_rank": 512, "layer_group_size": 6,
    "linear_conv_kernel_dim": 4, "linear_head_dim": 128, "linear_num_heads": 16,
    "model_max_length": 131072, "model_type": "bailing_hybrid", "moe_intermediate_size": 512,
    "moe_renormalize": true, "mtp_loss_scaling_factor": 0.0, "num_attention_heads": 16,
    "num_expert_group": 8, "num_experts": 128, "num_experts_per_token": 8,
    "num_hidden_layers": 24, "num_key_value_heads": 16, "num_nextn_predict_layers": 0,
    "num_shared_experts": 1, "output_router_logits": false, "pad_token_id": 156892,
    "pretraining_tp": 1, "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 6000000.0, "rope_type": "default"},
    "rope_theta": 6000000.0, "routed_scaling_factor": 2.5, "short_conv_kernel_size": 4,
    "tie_word_embeddings": false, "topk_group": 4, "transformers_version": "5.23.0",
    "use_cache": true, "v_head_dim": 128, "vocab_size": 157184})");
  for (int64_t i = 0; i < 24; ++i) {
    json["layer_types"].push_back((i + 1) % 4 == 0 ? "full_attention" : "linear_attention");
    json["mlp_layer_types"].push_back(i < 1 ? "dense" : "sparse");
  }
  return json;
}

TEST(Ling3, Tiny) {
  const Json given = ling_tiny();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "bailing_hybrid");
  EXPECT_EQ(std::ssize(c.linear_layers), 18);
  EXPECT_FALSE(c.is_linear(3));
  EXPECT_TRUE(c.linear.by_channel());
  EXPECT_EQ(c.linear.decays(), 2048);
  EXPECT_EQ(c.linear.decay_floor, -5.0f);
  const AttentionShape full = c.attention(3);
  EXPECT_EQ(full.gates, 16);
  EXPECT_TRUE(full.head_gates);
  EXPECT_EQ(full.rotary_width, 64);
  EXPECT_EQ(full.key_width, 192);
  EXPECT_EQ(full.cached_width(), 576);
  EXPECT_EQ(c.moe_layer_count(), 23);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).groups, 8);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).keep, 4);
  EXPECT_EQ(std::get<ChosenScores>(spec.weigh).scale, 2.5f);
  const int64_t d = 1536, heads = 16, wide = 2048,
                latent = 256 * d + 256 + heads * 192 * 256 + (512 + 64) * d + 512 +
                         heads * 256 * 512 + heads * d + d * wide,
                linear = 5 * wide * d + heads * d + 3 * wide * 4 + wide + heads + 128 + d * wide,
                experts = 128 * d + 129 * 3 * d * 512;
  EXPECT_EQ(count_params(c).total(), 2 * 157184 * d + d + 24 * 2 * d + 6 * latent + 18 * linear +
                                         3 * d * 4608 + 23 * experts);
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["layer_group_size"], 4);
  EXPECT_EQ(saved["head_dim"], 128);
  expect_same(saved, c);
  expect_same(with(given, "model_type", "bailing_moe_v3"), c);
  for (const char* key : {"gated_attention_proj_granularity_type", "no_kda_lora", "topk_method",
                          "moe_router_enable_expert_bias", "partial_rotary_factor", "qk_head_dim"})
    expect_same(without(given, key), c);
  std::vector<Json> none(24);
  expect_same(with(given, "expert_swiglu_limit_list", none), c);
}

TEST(Ling3, AsTransformersSavesIt) {
  const Json given = saved_by_transformers();
  const ModelConfig c = parse(given);
  expect_same(without(ling_tiny(), "q_lora_rank"), c);
  expect_same(with(ling_tiny(), "q_lora_rank", nullptr), c);
  // What was in the first config it keeps there.
  Json part = given;
  part["rope_parameters"]["partial_rotary_factor"] = 0.5;
  expect_same(part, c);
  EXPECT_EQ(parse(with(given, "linear_num_heads", 12)).linear.key_heads, 12);
  EXPECT_FAILS(parse(with(given, "head_dim", 96)), "\"linear_head_dim\" says another width");
  EXPECT_FAILS(parse(with(given, "short_conv_kernel_size", 3)),
               "\"linear_conv_kernel_dim\" says another number");
  // Decays without a floor, and layers that are no groups.
  Json other = with(without(given, "kda_lower_bound"), "kda_safe_gate", false);
  other["layer_types"][0] = "full_attention";
  const ModelConfig free = parse(other);
  EXPECT_EQ(free.linear.decay_floor, 0);
  EXPECT_FALSE(free.is_linear(0));
  const Json saved = parse_json(config_to_json(free), "x");
  EXPECT_FALSE(saved.contains("layer_group_size"));
  expect_same(saved, free);
}

TEST(Ling3, WhatIsRefused) {
  const Json given = ling_tiny();
  expect_needed(given, {"kda_safe_gate", "kda_lower_bound", "layer_group_size", "head_dim",
                        "short_conv_kernel_size", "first_k_dense_replace", "num_experts",
                        "num_experts_per_tok", "num_shared_experts", "n_group", "topk_group",
                        "routed_scaling_factor", "kv_lora_rank", "max_position_embeddings"});
  expect_refused(given, {{"no_kda_lora", false},
                         {"gated_attention_proj_granularity_type", "element_wise"},
                         {"use_mla_nope", true},
                         {"use_qkv_bias", true},
                         {"attention_bias", true},
                         {"norm_topk_prob", false},
                         {"moe_router_enable_expert_bias", false},
                         {"score_function", "softmax"},
                         {"routing_group_score_top_k", 1},
                         {"rope_interleave", false},
                         {"layer_group_size", 5}});
  EXPECT_FAILS(parse(with(given, "kda_lower_bound", 1)), "\"kda_lower_bound\"");
  EXPECT_FAILS(parse(with(given, "num_experts_per_tok", 1)), "\"num_experts_per_tok\" is 1");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");
  EXPECT_FAILS(parse(with(given, "expert_swiglu_limit_list", std::vector<double>(24, 7))),
               "\"expert_swiglu_limit_list\"");

  // What it cannot say becomes our own.
  for (const auto change : {+[](ModelConfig& c) { c.nope_layers = {3}; },
                            +[](ModelConfig& c) { c.attention_gate = c.head_gates = false; },
                            +[](ModelConfig& c) { c.linear.gate_width = 128; },
                            +[](ModelConfig& c) { c.linear.value_heads = 32; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
  // Nor can others say what it is.
  ModelConfig c = parse(given);
  EXPECT_FAILS(architecture_of(c, "kimi_linear", "here"), "its attention has one gate a head");
  c.attention_gate = c.head_gates = false;
  EXPECT_FAILS(architecture_of(c, "kimi_linear", "here"),
               "decays of its linear attention have a floor");
  c.linear.decay_floor = 0;
  EXPECT_FAILS(architecture_of(c, "kimi_linear", "here"),
               "keys, values and gates of its linear attention are of different sizes");
}

// The published names, and the one that transformers writes otherwise.
TEST(Ling3, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("bailing_hybrid"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  {
    const Safetensors file = Safetensors::open(folder.path());
    const auto shape = [&](const std::string& name) { return describe(file.get("model." + name)); };
    const auto numbers = [&](ParamKind kind, int64_t layer, bool bias = false) {
      return values(model->find(Part::attention, kind, layer, bias)->value);
    };
    const std::string width = std::to_string(model->config().width),
                      heads = std::to_string(model->config().heads);
    EXPECT_EQ(shape("word_embeddings.weight"), "f32 [256, " + width + "]");
    EXPECT_EQ(shape("layers.0.attention.q_conv1d.weight"), "f32 [12, 1, 3]");
    EXPECT_EQ(shape("layers.0.attention.f_proj.weight"), "f32 [12, " + width + "]");
    EXPECT_EQ(shape("layers.0.attention.g_proj.weight"), "f32 [12, " + width + "]");
    EXPECT_EQ(shape("layers.0.attention.b_proj.weight"), "f32 [3, " + width + "]");
    EXPECT_EQ(shape("layers.0.attention.A_log"), "f32 [3]");
    EXPECT_EQ(shape("layers.0.attention.dt_bias"), "f32 [12]");
    EXPECT_EQ(shape("layers.1.attention.g_proj.weight"), "f32 [" + heads + ", " + width + "]");
    EXPECT_EQ(shape("layers.1.attention.kv_a_proj_with_mqa.weight"), "f32 [10, " + width + "]");
    EXPECT_EQ(values(file.get("model.layers.0.attention.o_proj.weight")),
              numbers(ParamKind::linear_o, 0));
    EXPECT_EQ(values(file.get("model.layers.1.attention.dense.weight")), numbers(ParamKind::o, 1));
    EXPECT_TRUE(file.contains("model.layers.1.mlp.gate.expert_bias"));
    EXPECT_TRUE(file.contains("model.layers.1.mlp.experts.2.up_proj.weight"));
    EXPECT_TRUE(file.contains("model.layers.1.mlp.shared_experts.down_proj.weight"));
  }
  const auto expect_read = [&] {
    const LoadedModel loaded = load_model(folder.path());
    for (size_t i = 0; i < model->params().size(); ++i)
      EXPECT_EQ(values(loaded.model->params()[i]->value), values(model->params()[i]->value))
          << model->params()[i]->name;
  };
  expect_read();
  rewrite_tensors(folder.path(), [](SafetensorsItem& item) {
    const size_t at = item.name.find("attention.o_proj.");
    if (at != std::string::npos) item.name.replace(at, 17, "attention.dense.");
    return true;
  });
  expect_read();
}

}  // namespace
}  // namespace moe::test::ling3_test
