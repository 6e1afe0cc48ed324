// Families whose layers are one sublayer alone, by the configs that are published of them, and how
// their tensors are called.
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

namespace moe::test::half_layers_test {
namespace {

constexpr const char* kNanoPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

// Nemotron-3-Nano-30B-A3B's sizes (huggingface nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16).
Json nemotron_3_nano() {
  Json json = Json::parse(R"({
    "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
    "hidden_size": 2688, "initializer_range": 0.02, "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
    "mamba_num_heads": 64, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
    "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h", "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52,
    "num_key_value_heads": 2, "num_logits_to_keep": 1, "partial_rotary_factor": 1.0,
    "rescale_prenorm_residual": true, "residual_in_fp32": false, "rope_theta": 10000,
    "routed_scaling_factor": 2.5, "sliding_window": null, "ssm_state_size": 128,
    "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1,
    "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": false,
    "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})");
  json["hybrid_override_pattern"] = kNanoPattern;
  return json;
}

// Nemotron-H-8B's (huggingface nvidia/Nemotron-H-8B-Base-8K, github NVIDIA/TensorRT-LLM
// tests/unittest/_torch/modeling/test_modeling_nemotron_h.py).
Json nemotron_h_8b() {
  return Json::parse(R"({
    "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attention_head_dim": 128, "bos_token_id": 1, "chunk_size": 256, "conv_kernel": 4,
    "eos_token_id": 2, "expand": 2, "hidden_dropout": 0.0, "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "initializer_range": 0.02, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128,
    "mamba_proj_bias": false, "max_position_embeddings": 8192, "mlp_bias": false,
    "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8,
    "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 8,
    "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": true,
    "residual_in_fp32": false, "rms_norm_eps": 1e-05, "sliding_window": null,
    "ssm_state_size": 128, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_bias": false, "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true,
    "vocab_size": 131072})");
}

TEST(HalfLayers, Nemotron3Nano) {
  const Json given = nemotron_3_nano();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "nemotron_h");
  EXPECT_EQ(c.layers, 52);
  EXPECT_EQ(std::ssize(c.scan_layers), 23);
  EXPECT_EQ(c.moe_layer_count(), 23);
  EXPECT_EQ(c.dense_layer_count(), 0);
  EXPECT_EQ(c.sublayers(), 52);
  EXPECT_EQ(c.nope_layers, (std::vector<int64_t>{5, 12, 19, 26, 33, 42}));
  for (int64_t i = 0; i < c.layers; ++i) {
    EXPECT_NE(c.mixes(i), c.has_ffn(i)) << i;
    EXPECT_EQ(c.is_moe(i), kNanoPattern[i] == 'E') << i;
    EXPECT_EQ(c.mixer(i) == Mixer::scan, kNanoPattern[i] == 'M') << i;
    EXPECT_EQ(c.state_numbers(i) > 0, kNanoPattern[i] == 'M') << i;
  }
  EXPECT_EQ(c.scan.channels(), 6144);
  EXPECT_EQ(c.scan.groups, 8);
  EXPECT_TRUE(c.scan.conv_bias);
  EXPECT_FALSE(c.gated);
  EXPECT_EQ(c.act, ops::Act::relu2);
  EXPECT_EQ(c.shared_experts * c.shared_width, 3712);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).groups, 1);
  EXPECT_EQ(std::get<ChosenScores>(spec.weigh).scale, 2.5f);
  EXPECT_EQ(count_params(c).total(), 31577937344);  // "31.6B", of which "3.6B" are active
  EXPECT_EQ(count_params(c).active(), 3580073408);
  EXPECT_EQ(count_memory(c).kv_per_token_bf16, 2 * 6 * 2 * 256);
  expect_same(parse_json(config_to_json(c), "x"), c);
}

// What transformers 5 lists, what Python writes of a number without end, what was said in two ways.
TEST(HalfLayers, OtherWordsOfTheSame) {
  const Json given = nemotron_3_nano();
  const ModelConfig c = parse(given);
  for (const bool newer : {false, true}) {
    Json listed = without(without(given, "hybrid_override_pattern"), "num_hidden_layers");
    for (const char letter : std::string(kNanoPattern))
      listed["layers_block_type"].push_back(letter == 'E'   ? "moe"
                                            : letter == 'M' ? (newer ? "linear_attention" : "mamba")
                                            : newer         ? "full_attention"
                                                            : "attention");
    expect_same(listed, c);
    expect_same(with(listed, "hybrid_override_pattern", kNanoPattern), c);
    EXPECT_FAILS(parse(with(listed, "hybrid_override_pattern", "M*")), "has other layers");
    const Json types = listed["layers_block_type"];
    expect_same(with(without(listed, "layers_block_type"), "layer_types", types), c);
    expect_same(with(listed, "layer_types", types), c);
    EXPECT_FAILS(parse(with(listed, "layer_types", Json::array({"moe"}))), "lists other layers");
    listed["layers_block_type"][3] = "rwkv";
    EXPECT_FAILS(parse(listed), "\"layers_block_type\" has \"rwkv\" at layer 3");
  }
  expect_same(with(given, "attention_head_dim", 128), c);
  expect_same(with(given, "time_step_limit", {0.0, {{"__float__", "Infinity"}}}), c);
  std::string text = given.dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity], "_name_or_path": "to \"Infinity", )");
  EXPECT_EQ(config_to_json(parse_config(text, "config.json")), config_to_json(c));
  text.insert(1, R"("hidden_dropout_too": Infinity, )");
  EXPECT_FAILS(parse_config(text, "config.json"), "\"hidden_dropout_too\" is not known");
}

TEST(HalfLayers, NemotronH) {
  const Json given = nemotron_h_8b();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.head_width, 128);
  EXPECT_EQ(c.moe_layer_count(), 0);
  EXPECT_EQ(c.dense_layer_count(), 24);
  EXPECT_EQ(count_params(c).total(), 8100852736);
  expect_same(parse_json(config_to_json(c), "x"), c);
  // Sizes of experts that there are none of, as transformers 5 writes them.
  Json newer = with(with(given, "moe_latent_size", 1024), "n_routed_experts", 8);
  for (const char* key : {"moe_intermediate_size", "moe_shared_expert_intermediate_size"})
    newer[key] = 7688;
  expect_same(newer, c);
  // Nemotron-Nano-9B-v2's (huggingface nvidia/NVIDIA-Nemotron-Nano-9B-v2).
  Json nano = with(given, "hybrid_override_pattern",
                   "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-");
  nano["num_hidden_layers"] = 56;
  nano["hidden_size"] = 4480;
  nano["intermediate_size"] = 15680;
  nano["num_attention_heads"] = 40;
  nano["mamba_head_dim"] = 80;
  nano["head_dim"] = 128;
  EXPECT_EQ(count_params(parse(nano)).total(), 8888227328);
}

TEST(HalfLayers, WhatIsRefused) {
  const Json given = nemotron_3_nano();
  expect_needed(given, {"hybrid_override_pattern", "head_dim", "mamba_num_heads", "ssm_state_size",
                        "n_routed_experts", "routed_scaling_factor", "layer_norm_epsilon",
                        "mlp_hidden_act", "moe_shared_expert_intermediate_size"});
  expect_refused(given, {{"moe_latent_size", 1024},
                         {"attention_bias", true},
                         {"mlp_bias", true},
                         {"use_bias", true},
                         {"mamba_proj_bias", true},
                         {"mamba_hidden_act", "gelu"},
                         {"sliding_window", 4096},
                         {"attention_head_dim", 64},
                         {"time_step_limit", {0.001, 0.1}},
                         {"norm_topk_prob", false}});
  EXPECT_FAILS(parse(with(given, "n_shared_experts", 2)), "\"n_shared_experts\" is 2");
  EXPECT_FAILS(parse(with(given, "num_hidden_layers", 50)),
               "52 layers are listed, \"num_hidden_layers\" is 50");
  const auto of_pattern = [&](const std::string& pattern) {
    Json json = with(given, "hybrid_override_pattern", pattern);
    json["num_hidden_layers"] = pattern.size();
    return json;
  };
  EXPECT_FAILS(parse(of_pattern("MEX*")), "\"hybrid_override_pattern\" has \"X\" at layer 2");
  EXPECT_FAILS(parse(of_pattern("")), "0 layers are listed");
  EXPECT_FAILS(parse(of_pattern("E-E")), "all 3 layers are FFNs alone");
  EXPECT_FALSE(parse(of_pattern("*-")).has_states());
  EXPECT_EQ(parse(of_pattern("MM*")).sublayers(), 3);

  // What it cannot say becomes our own.
  for (const auto change :
       {+[](ModelConfig& c) { c.nope_layers.clear(); },
        +[](ModelConfig& c) { c.mixer_only_layers.pop_back(); },
        +[](ModelConfig& c) { c.shared_experts = 2; }, +[](ModelConfig& c) { c.gated = true; },
        +[](ModelConfig& c) { c.attention_bias = true; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
}

// One norm a layer, one matrix of a state space's projections, and the names that transformers may
// write in place of the published ones.
TEST(HalfLayers, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("nemotron_h"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  {
    const Safetensors file = Safetensors::open(folder.path());
    const auto shape = [&](const std::string& name) {
      return describe(file.get("backbone." + name));
    };
    const auto numbers = [&](Part part, ParamKind kind, int64_t layer, bool bias = false) {
      return values(model->find(part, kind, layer, bias)->value);
    };
    EXPECT_EQ(shape("embeddings.weight"), "f32 [256, 8]");
    EXPECT_EQ(shape("norm_f.weight"), "f32 [8]");
    EXPECT_EQ(shape("layers.0.mixer.in_proj.weight"), "f32 [48, 8]");  // 12, 32 and 4
    EXPECT_EQ(shape("layers.0.mixer.conv1d.weight"), "f32 [32, 1, 3]");
    EXPECT_EQ(shape("layers.0.mixer.norm.weight"), "f32 [12]");
    EXPECT_EQ(shape("layers.0.mixer.out_proj.weight"), "f32 [8, 12]");
    EXPECT_EQ(shape("layers.1.mixer.experts.2.up_proj.weight"), "f32 [6, 8]");
    EXPECT_EQ(shape("layers.1.mixer.experts.2.down_proj.weight"), "f32 [8, 6]");
    EXPECT_EQ(shape("layers.1.mixer.shared_experts.up_proj.weight"), "f32 [10, 8]");
    EXPECT_EQ(shape("layers.1.mixer.gate.weight"), "f32 [3, 8]");
    EXPECT_EQ(shape("layers.2.mixer.k_proj.weight"), "f32 [4, 8]");
    EXPECT_EQ(shape("layers.3.mixer.up_proj.weight"), "f32 [12, 8]");
    EXPECT_EQ(shape("layers.3.mixer.down_proj.weight"), "f32 [8, 12]");
    EXPECT_EQ(values(file.get("backbone.layers.0.norm.weight")),
              numbers(Part::norms, ParamKind::attn_norm, 0));
    EXPECT_EQ(values(file.get("backbone.layers.1.norm.weight")),
              numbers(Part::norms, ParamKind::ffn_norm, 1));
    EXPECT_EQ(values(file.get("backbone.layers.0.mixer.D")),
              numbers(Part::attention, ParamKind::scan_skip, 0, true));
    EXPECT_EQ(values(file.get("backbone.layers.1.mixer.gate.e_score_correction_bias")),
              numbers(Part::router, ParamKind::selection_bias, 1));
    EXPECT_TRUE(file.contains("lm_head.weight"));
  }
  const auto expect_read = [&] {
    const LoadedModel loaded = load_model(folder.path());
    for (size_t i = 0; i < model->params().size(); ++i)
      EXPECT_EQ(values(loaded.model->params()[i]->value), values(model->params()[i]->value))
          << model->params()[i]->name;
  };
  rewrite_tensors(folder.path(), [](SafetensorsItem& item) {
    if (item.name == "backbone.embeddings.weight") item.name = "backbone.embedding.weight";
    return true;
  });
  expect_read();
  rewrite_tensors(folder.path(), [](SafetensorsItem& item) {
    constexpr std::string_view kPrefix = "backbone.";
    if (item.name.starts_with(kPrefix)) item.name = "model." + item.name.substr(kPrefix.size());
    return true;
  });
  expect_read();
}

}  // namespace
}  // namespace moe::test::half_layers_test
