// Hy4 by a config as transformers saves it, and by how its tensors are called.
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

namespace moe::test::hy4_test {
namespace {

// What transformers 5.23 saves of HYV4Config().
Json by_default() {
  Json json = Json::parse(R"({
    "architectures": ["HYV4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 120000, "dtype": "bfloat16", "eos_token_id": 120025, "hc_eps": 1e-06,
    "hc_magnitude": 2.0, "hc_mult": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2816,
    "index_head_dim": 128, "index_n_heads": 16, "index_topk": 2048, "initializer_range": 0.006,
    "intermediate_size": 6912, "kv_lora_rank": 512, "learnable_sink_init": 0.0,
    "max_position_embeddings": 262144, "model_type": "hy_v4", "moe_intermediate_size": 768,
    "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts_per_tok": 8, "num_hidden_layers": 34,
    "num_key_value_heads": 32, "output_router_logits": false, "pad_token_id": 120002,
    "q_lora_rank": 1536, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "routed_scaling_factor": 2.827, "swiglu_limit": 10.0, "tie_word_embeddings": false,
    "topk_group": 1, "transformers_version": "5.23.0", "use_cache": true, "v_head_dim": 256,
    "vocab_size": 120832})");
  for (int i = 0; i < 34; ++i) {
    json["indexer_types"].push_back(i == 0 || i % 4 == 1 ? "full" : "shared");
    json["layer_types"].push_back("indexed_attention");
    json["mlp_layer_types"].push_back(i < 1 ? "dense" : "sparse");
  }
  return json;
}

TEST(Hy4, AsTransformersSavesIt) {
  const Json given = by_default();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "hy_v4");
  EXPECT_EQ(c.hyper.streams, 4);
  EXPECT_FALSE(c.hyper.mixes);
  EXPECT_EQ(c.hyper.magnitude, 2);
  EXPECT_EQ(c.sparse.norm_eps, 1e-5f);
  EXPECT_TRUE(c.experts_held);
  EXPECT_TRUE(c.attention_sinks);
  EXPECT_EQ(c.attention(3).gates, 32 * 256);
  EXPECT_EQ(c.attention(5).index_heads, 16);
  EXPECT_EQ(c.attention(6).index_heads, 0);
  EXPECT_EQ(c.moe_layer_count(), 33);
  const int64_t d = 2816, heads = 32, value = 256,
                attention = 1536 * d + 1536 + heads * 256 * 1536 + (512 + 64) * d + 512 +
                            heads * (192 + value) * 512 + 2 * heads * value * d + heads,
                indexer = (16 * 1536 + d) * 128 + 16 * d + 2 * 128,
                // a number for reading and one for writing of each stream, of all streams
      streams = 2 * (8 * 4 * d + 8 + 2), end = 4 * 4 * d + 4 + 1,
                experts = 256 * d + 257 * 3 * d * 768;
  EXPECT_EQ(count_params(c).total(), 2 * 120832 * d + d + end + 34 * (2 * d + attention + streams) +
                                         10 * indexer + 3 * d * 6912 + 33 * experts);
  const auto same = [&](const Json& json) {
    EXPECT_EQ(config_to_json(parse(json)), config_to_json(c)) << json.dump();
  };
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["indexer_types"], given["indexer_types"]);
  EXPECT_EQ(saved["swiglu_limit"], 10);
  same(saved);
  for (const char* key : {"layer_types", "head_dim", "qk_head_dim", "learnable_sink_init"})
    same(without(given, key));
}

TEST(Hy4, WhatIsRefused) {
  const Json given = by_default();
  expect_needed(given, {"hc_mult", "hc_magnitude", "hc_eps", "swiglu_limit", "index_topk",
                        "index_n_heads", "index_head_dim", "q_lora_rank", "kv_lora_rank"});
  EXPECT_FAILS(parse(with(given, "swiglu_limit", 7)), "\"swiglu_limit\" is 7; only 10 is known");
  EXPECT_FAILS(parse(with(given, "hc_mult", 1)), "\"hc_mult\" is 1");
  EXPECT_FAILS(parse(with(given, "norm_topk_prob", false)), "\"norm_topk_prob\"");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "gates of silu");

  // What it cannot say becomes our own.
  for (const auto change :
       {+[](ModelConfig& c) { c.hyper.mixes = true; }, +[](ModelConfig& c) { c.hyper = {}; },
        +[](ModelConfig& c) { c.experts_held = false; },
        +[](ModelConfig& c) { c.attention_sinks = false; },
        +[](ModelConfig& c) { c.sparse.norm_eps = 1e-6f; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  }
  // Nor can others say what it is.
  ModelConfig c = parse(given);
  EXPECT_FAILS(architecture_of(c, "glm_moe_dsa", "here"), "it has several residual streams");
  c.hyper = {};
  EXPECT_FAILS(architecture_of(c, "glm_moe_dsa", "here"), "its routed experts are held at 10");
}

// The names that transformers saves, and those that it reads besides them.
TEST(Hy4, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("hy_v4"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) { return describe(file.get("model." + name)); };
  const int64_t width = model->config().width;
  EXPECT_EQ(shape("layers.0.hc_pre.hc_attn_layer.hc_fn"), fmt::format("f32 [4, {}]", 2 * width));
  EXPECT_EQ(shape("layers.0.hc_pre.hc_mlp_layer.hc_base"), "f32 [4]");
  EXPECT_EQ(shape("layers.0.hc_pre.hc_mlp_layer.hc_scale"), "f32 [2]");
  EXPECT_EQ(shape("hc_pre.hc_head.hc_head_fn"), fmt::format("f32 [2, {}]", 2 * width));
  EXPECT_EQ(shape("hc_pre.hc_head.hc_head_scale"), "f32 [1]");
  EXPECT_EQ(shape("layers.0.self_attn.learnable_sink_param"),
            fmt::format("f32 [{}]", model->config().heads));
  EXPECT_TRUE(file.contains("model.layers.0.self_attn.linear_gate.weight"));
  EXPECT_TRUE(file.contains("model.layers.0.mlp.linear_gate.weight"));
  EXPECT_TRUE(file.contains("model.layers.1.mlp.shared_experts.linear_gate.weight"));
  EXPECT_TRUE(file.contains("model.layers.1.mlp.experts.gate_up_proj"));
}

}  // namespace
}  // namespace moe::test::hy4_test
