// Families some of whose layers have something else in place of attention, an FFN behind each, by
// the configs that are published of them, and how their tensors are called.
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

namespace moe::test::hybrid_families_test {
namespace {

void expect_same(const Json& json, const ModelConfig& as) {
  EXPECT_EQ(config_to_json(parse(json)), config_to_json(as)) << json.dump();
}

ModelConfig small(const char* family) {
  const std::vector<NamedConfig> families = small_families();
  return std::ranges::find(families, family, &NamedConfig::name)->config;
}

// Bamba-9B's sizes (huggingface ibm-ai-platform/Bamba-9B-v1).
Json bamba_9b() {
  return Json::parse(R"({
    "architectures": ["BambaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "mamba_chunk_size": 256,
    "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": false,
    "max_position_embeddings": 262144, "mlp_bias": false, "model_type": "bamba",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_logits_to_keep": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_cache": true, "use_mamba_kernels": true, "vocab_size": 128256})");
}

TEST(HybridFamilies, Bamba) {
  const Json given = bamba_9b();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "bamba");
  EXPECT_EQ(std::ssize(c.scan_layers), 29);
  for (int64_t i = 0; i < c.layers; ++i)
    EXPECT_EQ(c.mixer(i), i % 9 == 0 && i > 0 ? Mixer::attention : Mixer::scan) << i;
  EXPECT_EQ(c.attention(9).rotary_width, 64);
  EXPECT_EQ(c.attention(9).key_width, 128);
  EXPECT_EQ(c.scan.width, 64);
  EXPECT_EQ(c.scan.channels(), 8448);
  EXPECT_EQ(c.state_numbers(0), 3 * 8448 + 128 * 64 * 128);
  EXPECT_EQ(c.state_numbers(9), 0);
  EXPECT_TRUE(c.scan.conv_bias);
  EXPECT_FALSE(c.attention_bias || c.attention_out_bias || c.ffn_bias);
  EXPECT_EQ(c.moe_layer_count(), 0);
  EXPECT_EQ(count_params(c).total(), 9780235392);  // "9.78B"
  expect_same(parse_json(config_to_json(c), "x"), c);

  // As transformers 5 writes it.
  Json newer = without(without(given, "attn_rotary_emb"), "rope_theta");
  newer["rope_parameters"] = {
      {"partial_rotary_factor", 0.5}, {"rope_theta", 10000.0}, {"rope_type", "default"}};
  newer["time_step_limit"] = {0.0, {{"__float__", "Infinity"}}};
  newer["z_loss_coefficient"] = 0.0;
  expect_same(newer, c);
  for (const char* said : {"auto", ""})
    expect_same(*said ? with(given, "mamba_d_head", said) : without(given, "mamba_d_head"), c);

  // Without attention at all.
  for (const Json& none : {Json(), Json::array()}) {
    const ModelConfig all = parse(with(given, "attn_layer_indices", none));
    EXPECT_EQ(std::ssize(all.scan_layers), 32);
    expect_same(parse_json(config_to_json(all), "x"), all);
  }
  const ModelConfig biased = parse(with(with(given, "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(biased.attention_bias && biased.attention_out_bias && biased.ffn_bias);
  expect_same(parse_json(config_to_json(biased), "x"), biased);
}

TEST(HybridFamilies, WhatIsRefusedOfBamba) {
  const Json given = bamba_9b();
  expect_needed(given,
                {"attn_layer_indices", "mamba_n_heads", "mamba_n_groups", "mamba_d_state",
                 "mamba_d_conv", "mamba_conv_bias", "mamba_expand", "hidden_act", "rope_theta"});
  expect_refused(given, {{"mamba_proj_bias", true},
                         {"mamba_d_head", 32},
                         {"attn_rotary_emb", 128},
                         {"time_step_limit", {0.001, 0.1}}});
  EXPECT_FAILS(parse(with(given, "attn_layer_indices", {9, 32})), "lists layer 32");
  EXPECT_FAILS(parse(with(given, "attn_layer_indices", {-1})), "lists layer -1");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");
  for (const double share : {0.25, 1.0})
    EXPECT_FAILS(parse(with(given, "partial_rotary_factor", share)),
                 "another part of each head than half turns");
  Json attends = given;
  for (int layer = 0; layer < 32; ++layer) attends["attn_layer_indices"].push_back(layer);
  EXPECT_FAILS(parse(attends), "none of its layers has a state space");

  // What it cannot say becomes our own.
  for (const auto change :
       {+[](ModelConfig& c) { c.rotary_width = 32; }, +[](ModelConfig& c) { c.rotary_width = 0; },
        +[](ModelConfig& c) { c.nope_layers = {9}; }, +[](ModelConfig& c) { c.gated = false; },
        +[](ModelConfig& c) { c.multipliers.residual = 0.5f; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
}

TEST(HybridFamilies, TensorsOfBamba) {
  const TempFolder folder;
  const auto model = drawn_model(small("bamba"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) { return describe(file.get("model." + name)); };
  EXPECT_EQ(shape("layers.0.mamba.in_proj.weight"), "f32 [48, 8]");  // 16, 28 and 4
  EXPECT_EQ(shape("layers.0.mamba.conv1d.weight"), "f32 [28, 1, 3]");
  EXPECT_EQ(shape("layers.0.mamba.conv1d.bias"), "f32 [28]");
  EXPECT_EQ(shape("layers.0.mamba.norm.weight"), "f32 [16]");
  EXPECT_EQ(shape("layers.0.mamba.out_proj.weight"), "f32 [8, 16]");
  EXPECT_EQ(shape("layers.1.self_attn.k_proj.weight"), "f32 [8, 8]");
  EXPECT_EQ(shape("layers.1.self_attn.o_proj.weight"), "f32 [8, 16]");
  EXPECT_EQ(shape("layers.2.feed_forward.gate_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("layers.2.feed_forward.down_proj.weight"), "f32 [8, 12]");
  EXPECT_EQ(values(file.get("model.layers.0.input_layernorm.weight")),
            values(model->find(Part::norms, ParamKind::attn_norm, 0)->value));
  EXPECT_EQ(values(file.get("model.layers.0.pre_ff_layernorm.weight")),
            values(model->find(Part::norms, ParamKind::ffn_norm, 0)->value));
  EXPECT_EQ(shape("final_layernorm.weight"), "f32 [8]");
  EXPECT_TRUE(file.contains("lm_head.weight"));
  EXPECT_FALSE(file.contains("model.layers.1.mamba.D"));
}

}  // namespace
}  // namespace moe::test::hybrid_families_test
