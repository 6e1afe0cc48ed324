// Jamba by the configs that are published of it, and how its tensors are called.
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

namespace moe::test::jamba_test {
namespace {

// Jamba 1.5 Mini's sizes, as other programs have them.
Json mini() {
  return Json::parse(R"({
    "architectures": ["JambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4,
    "attn_layer_period": 8, "bos_token_id": 1, "eos_token_id": [2, 518], "expert_layer_offset": 1,
    "expert_layer_period": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "mamba_conv_bias": true,
    "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2,
    "mamba_proj_bias": false, "max_position_embeddings": 262144, "model_type": "jamba",
    "num_attention_heads": 32, "num_experts": 16, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_logits_to_keep": 1,
    "output_router_logits": false, "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "use_mamba_kernels": true,
    "vocab_size": 65536})");
}

// Jamba Reasoning 3B's, which has no experts.
Json reasoning() {
  Json json = mini();
  for (const auto& [key, value] : {std::pair{"attn_layer_offset", 7},
                                   {"attn_layer_period", 14},
                                   {"hidden_size", 2560},
                                   {"intermediate_size", 8192},
                                   {"mamba_dt_rank", 160},
                                   {"num_attention_heads", 20},
                                   {"num_experts", 1},
                                   {"num_hidden_layers", 28},
                                   {"num_key_value_heads", 1}})
    json[key] = value;
  json["tie_word_embeddings"] = true;
  return json;
}

TEST(Jamba, OfMixtures) {
  const Json given = mini();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "jamba");
  EXPECT_EQ(std::ssize(c.scan_layers), 28);
  for (int64_t i = 0; i < c.layers; ++i) {
    EXPECT_EQ(c.mixer(i), i % 8 == 4 ? Mixer::attention : Mixer::scan) << i;
    EXPECT_EQ(c.is_moe(i), i % 2 == 1) << i;
  }
  EXPECT_EQ(c.attention(4).rotary_width, 0);
  EXPECT_EQ(c.attention(4).key_width, 128);
  EXPECT_TRUE(c.scan.selective() && c.scan.norm && c.scan.conv_bias);
  EXPECT_EQ(c.scan.values(), 8192);
  EXPECT_EQ(c.scan.channels(), 8192);
  EXPECT_EQ(c.scan.made(), 256 + 32);
  EXPECT_EQ(c.state_numbers(0), 3 * 8192 + 8192 * 16);
  EXPECT_EQ(c.state_numbers(4), 0);
  EXPECT_EQ(c.routing.experts, 16);
  EXPECT_EQ(c.routing.recipe, "olmoe");
  EXPECT_EQ(count_params(c).total(), 51570323328);   // "52B"
  EXPECT_EQ(count_params(c).active(), 12110311296);  // "12B"
  expect_same(parse_json(config_to_json(c), "x"), c);

  expect_same(with(given, "mamba_dt_rank", "auto"), c);
  Json newer = given;
  newer["mamba_inner_layernorms"] = true;
  newer["use_mambapy"] = newer["use_associative_scan"] = false;
  for (int64_t i = 0; i < 32; ++i)
    newer["layers_block_type"].push_back(i % 8 == 4 ? "attention" : "mamba");
  expect_same(newer, c);
  Json renamed = without(given, "num_experts");
  renamed["num_local_experts"] = 16;
  expect_same(renamed, c);
}

TEST(Jamba, WithoutExpertsOrInAllLayers) {
  const ModelConfig dense = parse(reasoning());
  EXPECT_EQ(dense.moe_layer_count(), 0);
  EXPECT_EQ(dense.dense_width, 8192);
  for (int64_t i = 0; i < dense.layers; ++i)
    EXPECT_EQ(dense.mixer(i) == Mixer::attention, i == 7 || i == 21) << i;
  EXPECT_EQ(count_params(dense).total(), 3029337472);  // "3B"
  expect_same(parse_json(config_to_json(dense), "x"), dense);

  const ModelConfig everywhere =
      parse(with(with(mini(), "expert_layer_period", 1), "expert_layer_offset", 0));
  EXPECT_EQ(everywhere.moe_layer_count(), 32);
  expect_same(parse_json(config_to_json(everywhere), "x"), everywhere);
  const ModelConfig scans =
      parse(with(with(mini(), "attn_layer_period", 40), "attn_layer_offset", 33));
  EXPECT_EQ(std::ssize(scans.scan_layers), 32);
  expect_same(parse_json(config_to_json(scans), "x"), scans);
}

TEST(Jamba, WhatIsRefused) {
  const Json given = mini();
  expect_needed(
      given, {"attn_layer_period", "attn_layer_offset", "expert_layer_period",
              "expert_layer_offset", "mamba_d_state", "mamba_d_conv", "mamba_conv_bias",
              "mamba_expand", "mamba_dt_rank", "hidden_act", "num_experts", "num_experts_per_tok"});
  expect_refused(
      given,
      {{"mamba_proj_bias", true}, {"mamba_inner_layernorms", false}, {"sliding_window", 4096}});
  EXPECT_FAILS(parse(with(given, "attn_layer_offset", 8)),
               "\"attn_layer_offset\" is 8, \"attn_layer_period\" 8; the first must be below");
  EXPECT_FAILS(parse(with(given, "expert_layer_period", 0)), "expert_layer_period");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");
  Json other = given;
  for (int64_t i = 0; i < 32; ++i)
    other["layers_block_type"].push_back(i % 8 == 3 ? "attention" : "mamba");
  EXPECT_FAILS(parse(other), "say other layers");
  EXPECT_FAILS(parse(with(with(given, "attn_layer_period", 1), "attn_layer_offset", 0)),
               "none of its layers has a state space");

  // What it cannot say becomes our own.
  for (const auto change :
       {+[](ModelConfig& c) { c.nope_layers.pop_back(); },
        +[](ModelConfig& c) { c.scan.norm = false; }, +[](ModelConfig& c) { c.scan.heads = 6000; },
        +[](ModelConfig& c) { c.scan_layers.pop_back(), c.nope_layers.push_back(31); },
        +[](ModelConfig& c) { c.moe_layers.pop_back(); },
        +[](ModelConfig& c) { c.dense_width = 8192; },
        +[](ModelConfig& c) { c.routing.norm_topk_prob = true; },
        +[](ModelConfig& c) {
          c.scan.heads = 128;
          c.scan.width = 64;
          c.scan.step_rank = 0;
        }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
  // Nor do families of Mamba-2 say what it is.
  for (const char* type : {"bamba", "granitemoehybrid", "nemotron_h", "falcon_h1"}) {
    ModelConfig c = parse(given);
    c.model_type = type;
    EXPECT_EQ(architecture_of(c).model_type, "jamba") << type;
  }
}

TEST(Jamba, Tensors) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("jamba"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) { return describe(file.get("model." + name)); };
  const auto numbers = [&](ParamKind kind, bool bias = false) {
    return values(model->find(Part::attention, kind, 0, bias)->value);
  };
  EXPECT_EQ(shape("layers.0.mamba.in_proj.weight"), "f32 [32, 8]");
  EXPECT_EQ(shape("layers.0.mamba.conv1d.weight"), "f32 [16, 1, 3]");
  EXPECT_EQ(shape("layers.0.mamba.conv1d.bias"), "f32 [16]");
  EXPECT_EQ(shape("layers.0.mamba.x_proj.weight"), "f32 [8, 16]");  // 2, 3 and 3
  EXPECT_EQ(shape("layers.0.mamba.dt_proj.weight"), "f32 [16, 2]");
  EXPECT_EQ(shape("layers.0.mamba.A_log"), "f32 [16, 3]");
  EXPECT_EQ(shape("layers.0.mamba.out_proj.weight"), "f32 [8, 16]");
  EXPECT_EQ(shape("layers.0.mamba.dt_layernorm.weight"), "f32 [2]");
  EXPECT_EQ(shape("layers.0.mamba.b_layernorm.weight"), "f32 [3]");
  EXPECT_EQ(shape("layers.0.mamba.c_layernorm.weight"), "f32 [3]");
  EXPECT_EQ(shape("layers.0.feed_forward.gate_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("layers.1.feed_forward.router.weight"), "f32 [3, 8]");
  EXPECT_EQ(shape("layers.1.feed_forward.experts.2.down_proj.weight"), "f32 [8, 12]");
  EXPECT_EQ(shape("layers.1.self_attn.k_proj.weight"), "f32 [4, 8]");
  EXPECT_EQ(shape("final_layernorm.weight"), "f32 [8]");
  // What the convolution sees stands before the gates.
  std::vector<double> in = numbers(ParamKind::scan_x);
  const std::vector<double> gates = numbers(ParamKind::scan_z);
  in.insert(in.end(), gates.begin(), gates.end());
  EXPECT_EQ(values(file.get("model.layers.0.mamba.in_proj.weight")), in);
  EXPECT_EQ(values(file.get("model.layers.0.mamba.A_log")), numbers(ParamKind::scan_a_log, true));
  EXPECT_EQ(values(file.get("model.layers.0.mamba.D")), numbers(ParamKind::scan_skip, true));
  EXPECT_EQ(values(file.get("model.layers.0.mamba.dt_proj.bias")),
            numbers(ParamKind::scan_dt_bias, true));
  EXPECT_EQ(values(file.get("model.layers.0.pre_ff_layernorm.weight")),
            values(model->find(Part::norms, ParamKind::ffn_norm, 0)->value));
  EXPECT_FALSE(file.contains("model.layers.1.mamba.D"));
  EXPECT_FALSE(file.contains("model.layers.0.mamba.dt_bias"));
}

}  // namespace
}  // namespace moe::test::jamba_test
