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

// Bamba-9B's sizes, as other programs have them.
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
  const auto model = drawn_model(small_family("bamba"), 5);
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

// Falcon-H1-0.5B's sizes, as other programs have them, with round multipliers.
Json falcon_h1() {
  return Json::parse(R"({
    "architectures": ["FalconH1ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attention_in_multiplier": 0.5, "attention_out_multiplier": 0.9375,
    "attn_layer_indices": null, "bos_token_id": 1, "embedding_multiplier": 5.65625,
    "eos_token_id": 11, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 2048, "key_multiplier": 0.375,
    "lm_head_multiplier": 0.01953125, "mamba_chunk_size": 128, "mamba_conv_bias": true,
    "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
    "mamba_norm_before_gate": false, "mamba_proj_bias": false, "mamba_rms_norm": false,
    "mamba_use_mlp": true, "max_position_embeddings": 16384, "mlp_bias": false,
    "mlp_expansion_factor": 8, "mlp_multipliers": [0.875, 0.25], "model_type": "falcon_h1",
    "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2,
    "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": false,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 100000000000.0,
    "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.5, 0.25, 0.125, 0.75, 1.0],
    "ssm_out_multiplier": 0.234375, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 32784})");
}

TEST(HybridFamilies, FalconH1) {
  const Json given = falcon_h1();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "falcon_h1");
  EXPECT_EQ(std::ssize(c.scan_layers), 36);
  for (int64_t i = 0; i < c.layers; ++i) {
    EXPECT_TRUE(c.attends(i)) << i;
    EXPECT_EQ(c.mixer(i), Mixer::scan) << i;
  }
  EXPECT_TRUE(c.attention_turns() && c.scan.conv_bias && !c.scan.norm);
  EXPECT_EQ(c.scan.width, 64);
  EXPECT_EQ(c.state_numbers(0), 3 * 1792 + 1536 * 128);
  EXPECT_EQ(count_memory(c).kv_per_token_bf16, 2 * 36 * 2 * 128);
  EXPECT_EQ(count_params(c).total(), 521411104);
  const Multipliers& m = c.multipliers;
  EXPECT_EQ(m.embedding, 5.65625f);
  EXPECT_EQ(m.logits, 51.2f);
  EXPECT_EQ(m.attention, 0.5f * 0.5f * 0.375f / 8);
  EXPECT_EQ(m.attention_out, 0.5f * 0.9375f);
  EXPECT_EQ(m.scan_in, (std::array<float, 5>{0.625f, 0.3125f, 0.15625f, 0.9375f, 1.25f}));
  EXPECT_EQ(m.scan_out, 0.234375f);
  EXPECT_EQ(m.ffn_gate, 0.875f);
  EXPECT_EQ(m.ffn_down, 0.25f);
  const Json written = parse_json(config_to_json(c), "x");
  expect_same(written, c);
  EXPECT_EQ(written["key_multiplier"], 0.5 * 0.5 * 0.375);
  EXPECT_EQ(written["attention_in_multiplier"], 1.0);

  // In other words.
  expect_same(with(given, "mamba_d_head", "auto"), c);
  expect_same(with(given, "time_step_limit", {0.0, {{"__float__", "Infinity"}}}), c);
  Json wide = with(with(given, "mamba_d_ssm", nullptr), "mamba_n_heads", 32);
  EXPECT_EQ(parse(wide).scan.values(), 2048);
  Json plain = with(with(given, "ssm_multipliers", nullptr), "mlp_multipliers", nullptr);
  for (const auto& [key, value] : given.items())
    if (key.ends_with("_multiplier")) plain[key] = 1.0;
  EXPECT_TRUE(parse(plain).multipliers.none());
  expect_same(parse_json(config_to_json(parse(plain)), "x"), parse(plain));
  EXPECT_TRUE(parse(with(given, "mamba_rms_norm", true)).scan.norm);
}

TEST(HybridFamilies, WhatIsRefusedOfFalconH1) {
  const Json given = falcon_h1();
  expect_needed(given, {"mamba_d_ssm", "mamba_rms_norm", "key_multiplier", "ssm_in_multiplier",
                        "ssm_multipliers", "mlp_multipliers", "lm_head_multiplier",
                        "attention_in_multiplier", "num_key_value_heads", "rope_theta"});
  expect_refused(given, {{"attention_bias", true},
                         {"mlp_bias", true},
                         {"projectors_bias", true},
                         {"mamba_proj_bias", true},
                         {"mamba_d_head", 32},
                         {"time_step_limit", {0.001, 0.1}}});
  EXPECT_FAILS(parse(with(with(given, "mamba_rms_norm", true), "mamba_norm_before_gate", true)),
               "\"mamba_norm_before_gate\" is true");
  EXPECT_FAILS(parse(with(given, "ssm_multipliers", {1.0, 1.0})), "has 2 numbers; it must have 5");
  EXPECT_FAILS(parse(with(given, "mlp_multipliers", {1.0, 0.0})), "has 0; each must be");
  EXPECT_FAILS(parse(with(given, "key_multiplier", 0.0)), "\"key_multiplier\" is 0");
  EXPECT_FAILS(parse(with(given, "key_multiplier", 1e11)), "too small or too large");
  EXPECT_FAILS(parse(with(given, "mamba_n_heads", 23)), "does not divide \"mamba_d_ssm\", 1536");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");

  // What it cannot say becomes our own.
  for (const auto change :
       {+[](ModelConfig& c) { c.scan_layers.pop_back(); },
        +[](ModelConfig& c) { c.scan_beside = false; },
        +[](ModelConfig& c) { c.multipliers.residual = 0.5f; },
        +[](ModelConfig& c) { c.nope_layers = {3}; }, +[](ModelConfig& c) { c.rotary_width = 32; },
        +[](ModelConfig& c) { c.attention_bias = true; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
  // Nor can others say what it does.
  for (const char* type : {"bamba", "granitemoehybrid"})
    for (const auto change : {+[](ModelConfig& c) { c.scan_beside = true; },
                              +[](ModelConfig& c) { c.scan.norm = false; },
                              +[](ModelConfig& c) { c.multipliers.ffn_gate = 0.5f; },
                              +[](ModelConfig& c) { c.multipliers.scan_in[4] = 2; }}) {
      ModelConfig c = small_family(type);
      change(c);
      EXPECT_EQ(architecture_of(c).model_type, "moe_cpp") << type;
    }
}

TEST(HybridFamilies, TensorsOfFalconH1) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("falcon_h1"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers.1." + name));
  };
  EXPECT_EQ(shape("mamba.in_proj.weight"), "f32 [48, 8]");  // 12, 32 and 4
  EXPECT_EQ(shape("mamba.out_proj.weight"), "f32 [8, 12]");
  EXPECT_EQ(shape("self_attn.q_proj.weight"), "f32 [16, 8]");
  EXPECT_EQ(shape("self_attn.o_proj.weight"), "f32 [8, 16]");
  EXPECT_EQ(shape("feed_forward.up_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("pre_ff_layernorm.weight"), "f32 [8]");
  EXPECT_FALSE(file.contains("model.layers.1.mamba.norm.weight"));
  EXPECT_FALSE(file.contains("model.layers.1.mamba.conv1d.bias"));
  EXPECT_TRUE(file.contains("model.final_layernorm.weight"));
}

// Olmo-Hybrid-7B's sizes (github allenai/open-instruct
// open_instruct/test_hybrid_layer_speed_gpu.py, allenai/OLMo-core src/olmo_core/nn/hf/config.py).
Json olmo_hybrid_7b() {
  Json json = Json::parse(R"({
    "architectures": ["OlmoHybridForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": null, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 3840,
    "initializer_range": 0.02, "intermediate_size": 11008, "linear_allow_neg_eigval": true,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 96, "linear_num_key_heads": 30,
    "linear_num_value_heads": 30, "linear_value_head_dim": 192,
    "max_position_embeddings": 65536, "model_type": "olmo_hybrid", "num_attention_heads": 30,
    "num_hidden_layers": 32, "num_key_value_heads": 30, "pad_token_id": 100277,
    "rms_norm_eps": 1e-06, "rope_theta": null, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 100352})");
  for (int i = 0; i < 32; ++i)
    json["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "linear_attention");
  return json;
}

TEST(HybridFamilies, OlmoHybrid) {
  const Json given = olmo_hybrid_7b();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "olmo_hybrid");
  EXPECT_EQ(std::ssize(c.linear_layers), 24);
  EXPECT_EQ(c.nope_layers, (std::vector<int64_t>{3, 7, 11, 15, 19, 23, 27, 31}));
  for (int64_t i = 0; i < c.layers; ++i) {
    EXPECT_EQ(c.is_linear(i), i % 4 != 3) << i;
    EXPECT_EQ(c.placement(i), i % 4 == 3 ? NormPlacement::output : NormPlacement::pre) << i;
  }
  EXPECT_EQ(c.linear.channels(), 2 * 2880 + 5760);
  EXPECT_EQ(c.linear.most_strength(), 2);
  EXPECT_EQ(c.linear.norm_eps, 1e-5f);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.qk_norm, QkNorm::full);
  EXPECT_FALSE(c.attention_gate || c.norm_offset);
  EXPECT_EQ(count_params(c).total(), 7430870688);
  expect_same(parse_json(config_to_json(c), "x"), c);
  EXPECT_EQ(parse_json(config_to_json(c), "x")["rope_theta"], Json());

  // In other words: as transformers 5 writes it, and as its makers did before.
  Json newer = without(given, "rope_theta");
  newer["rope_parameters"] = {{"rope_theta", nullptr}, {"rope_type", "default"}};
  for (const char* key : {"linear_a_log_min", "linear_dt_max"}) newer[key] = 0.5;
  expect_same(newer, c);
  expect_same(with(with(given, "rope_parameters", nullptr), "linear_use_gate", true), c);

  // Where something turns.
  const ModelConfig turns = parse(with(given, "rope_theta", 500000));
  EXPECT_TRUE(turns.nope_layers.empty());
  EXPECT_EQ(turns.attention(3).rotary_width, 128);
  EXPECT_EQ(turns.rope_theta, 500000);
  expect_same(parse_json(config_to_json(turns), "x"), turns);
  newer["rope_parameters"]["rope_theta"] = 500000;
  expect_same(newer, turns);
  EXPECT_EQ(parse(with(given, "linear_allow_neg_eigval", false)).linear.most_strength(), 1);
}

TEST(HybridFamilies, WhatIsRefusedOfOlmoHybrid) {
  const Json given = olmo_hybrid_7b();
  expect_needed(given, {"layer_types", "linear_allow_neg_eigval", "linear_num_key_heads",
                        "linear_value_head_dim", "linear_conv_kernel_dim", "attention_bias",
                        "rope_theta", "rms_norm_eps"});
  EXPECT_FAILS(parse(with(without(given, "rope_theta"), "rope_parameters", nullptr)),
               "\"rope_theta\" is missing");
  EXPECT_FAILS(parse(with(with(given, "rope_theta", 10000), "rope_parameters",
                          {{"rope_theta", nullptr}, {"rope_type", "default"}})),
               "\"rope_theta\" is 10000; \"rope_parameters\" says null");
  EXPECT_FAILS(parse(with(given, "rope_scaling", {{"rope_type", "linear"}, {"factor", 2}})),
               "nothing turns that it could scale");
  EXPECT_FAILS(parse(with(given, "linear_use_gate", false)), "\"linear_use_gate\" is false");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "no SiLU");
  for (const char* type : {"linear_attention", "full_attention", "sliding_attention"}) {
    Json other = given;
    for (Json& of_layer : other["layer_types"]) of_layer = type;
    EXPECT_FAILS(parse(other), *type == 'l'   ? "none of its layers has attention"
                               : *type == 'f' ? "none of its layers has linear attention"
                                              : "has \"sliding_attention\" at layer 0");
  }

  // What it cannot say becomes our own.
  for (const auto change : {+[](ModelConfig& c) { c.nope_layers.pop_back(); },
                            +[](ModelConfig& c) { c.states_pre_norm = false; },
                            +[](ModelConfig& c) { c.linear.norm_eps = 0; },
                            +[](ModelConfig& c) { c.linear.gate_width = 96; },
                            +[](ModelConfig& c) { c.attention_gate = true; },
                            +[](ModelConfig& c) { c.qk_norm = QkNorm::head; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
  // Nor can others say what it does.
  for (const char* type : {"olmo2", "kimi_linear"})
    for (const auto change : {+[](ModelConfig& c) { c.linear.norm_eps = 1e-3f; },
                              +[](ModelConfig& c) { c.linear.negative = true; },
                              +[](ModelConfig& c) { c.states_pre_norm = true; }}) {
      ModelConfig c = small_family(type);
      change(c);
      EXPECT_EQ(architecture_of(c).model_type, "moe_cpp") << type;
    }
}

// What layers a model has that a family's have not, or lacks, is told before what else sets the
// family apart.
TEST(HybridFamilies, KindsOfLayersAreTold) {
  struct Case {
    const char *family, *type, *why;
  };
  for (const Case& of : {Case{"bamba", "lfm2", "some of its layers have a state space"},
                         {"bamba", "nemotron_h", "layer 0 mixes tokens and has an FFN"},
                         {"lfm2", "llama", "some of its layers have a convolution"},
                         {"lfm2", "granitemoehybrid", "some of its layers have a convolution"},
                         {"lfm2", "falcon_h1", "none of its layers has a state space"},
                         {"llama", "lfm3", "none of its layers has a convolution"},
                         {"llama", "jamba", "none of its layers has a state space"},
                         {"bamba", "jamba", "state spaces are not made of few numbers"},
                         {"jamba", "bamba", "state spaces are made of few numbers"},
                         {"olmo2", "olmo_hybrid", "none of its layers has linear attention"},
                         {"kimi_linear", "bailing_hybrid", "are made of few numbers"}})
    EXPECT_FAILS(architecture_of(small_family(of.family), of.type, "here"), of.why);

  ModelConfig linear = small_config();
  linear.linear = {
      .key_heads = 2, .value_heads = 4, .key_width = 4, .value_width = 6, .conv_width = 4};
  linear.linear_layers = {0};
  EXPECT_FAILS(architecture_of(linear, "bamba", "here"),
               "some of its layers have linear attention");
  linear.linear.channel_decays = true;
  EXPECT_FAILS(architecture_of(linear, "qwen3_5_text", "here"), "each channel has its own decay");
  linear.linear.decay_floor = -5;
  EXPECT_FAILS(architecture_of(linear, "qwen3_5_text", "here"), "attention have a floor");

  ModelConfig lightning = small_config();
  lightning.lightning_layers = {0};
  for (const char* type : {"llama", "lfm2", "granitemoehybrid"})
    EXPECT_FAILS(architecture_of(lightning, type, "here"),
                 "some of its layers have lightning attention");
}

// Queries, keys and values have convolutions of their own, of different widths; what transformers
// saves is cut into thirds instead, and norms have other names.
TEST(HybridFamilies, TensorsOfOlmoHybrid) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("olmo_hybrid"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const std::string layers = "model.layers.";
  const auto numbers = [&](Part part, ParamKind kind, int64_t layer) {
    return values(model->find(part, kind, layer)->value);
  };
  const Tensor conv = model->find(Part::attention, ParamKind::linear_conv, 0)->value;
  {
    const Safetensors file = Safetensors::open(folder.path());
    const auto of = [&](const std::string& name) { return values(file.get(layers + name)); };
    int64_t begin = 0;
    for (const auto& [name, width] : {std::pair{"q", int64_t{6}}, {"k", 6}, {"v", 20}}) {
      const std::string full = fmt::format("0.linear_attn.{}_conv1d.weight", name);
      EXPECT_EQ(describe(file.get(layers + full)), fmt::format("f32 [{}, 1, 3]", width));
      EXPECT_EQ(of(full), values(conv.slice_rows(begin, begin + width)));
      begin += width;
    }
    EXPECT_EQ(of("0.input_layernorm.weight"), numbers(Part::norms, ParamKind::attn_norm, 0));
    EXPECT_EQ(of("0.post_attention_layernorm.weight"),
              numbers(Part::norms, ParamKind::ffn_norm, 0));
    EXPECT_EQ(of("2.post_attention_layernorm.weight"),
              numbers(Part::norms, ParamKind::attn_out_norm, 2));
    EXPECT_EQ(of("2.post_feedforward_layernorm.weight"),
              numbers(Part::norms, ParamKind::ffn_out_norm, 2));
    EXPECT_FALSE(file.contains(layers + "2.input_layernorm.weight"));
    EXPECT_EQ(of("1.linear_attn.g_proj.weight"), numbers(Part::attention, ParamKind::linear_z, 1));
    EXPECT_EQ(of("1.linear_attn.a_proj.weight"), numbers(Part::attention, ParamKind::linear_a, 1));
    EXPECT_EQ(of("1.linear_attn.o_norm.weight"),
              numbers(Part::attention, ParamKind::linear_norm, 1));
    EXPECT_EQ(of("1.linear_attn.o_proj.weight"), numbers(Part::attention, ParamKind::linear_o, 1));
  }
  const auto expect_read = [&] {
    const LoadedModel loaded = load_model(folder.path());
    for (size_t i = 0; i < model->params().size(); ++i)
      EXPECT_EQ(values(loaded.model->params()[i]->value), values(model->params()[i]->value))
          << model->params()[i]->name;
  };
  expect_read();
  const auto rename = [](std::string& name, const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  };
  rewrite_tensors(folder.path(), [&](SafetensorsItem& item) {
    rename(item.name, "input_layernorm", "attention_layer_norm");
    if (item.name.find(".2.") == std::string::npos)
      rename(item.name, "post_attention_layernorm", "feedforward_layer_norm");
    return true;
  });
  expect_read();
  std::vector<SafetensorsItem> thirds;
  for (const int64_t layer : {0, 1}) {
    const Tensor of_layer = model->find(Part::attention, ParamKind::linear_conv, layer)->value;
    for (const auto& [name, begin, end] :
         {std::tuple{"q", int64_t{0}, int64_t{11}}, {"k", 11, 22}, {"v", 22, 32}}) {
      const Tensor third = of_layer.slice_rows(begin, end).reshape({end - begin, 1, 3});
      thirds.push_back({fmt::format("{}{}.linear_attn.{}_conv1d.weight", layers, layer, name),
                        third, DType::f32});
    }
  }
  rewrite_tensors(
      folder.path(),
      [&](SafetensorsItem& item) {
        rename(item.name, "post_attention_layernorm", "feedforward_layer_norm");
        return item.name.find("_conv1d") == std::string::npos;
      },
      thirds);
  expect_read();
}

}  // namespace
}  // namespace moe::test::hybrid_families_test
