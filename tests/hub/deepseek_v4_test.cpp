// DeepSeek-V4 by a config as transformers saves it and as it was published, and by how its tensors
// are called.
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

namespace moe::test::deepseek_v4_test {
namespace {

// In the words of its published configs, by the defaults of transformers' class; its own page was
// not read.
Json as_published() {
  Json json = Json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "compress_rope_theta": 160000, "expert_dtype": "fp4", "hc_eps": 1e-06, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "head_dim": 512, "hidden_act": "silu", "hidden_size": 4096,
    "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "initializer_range": 0.02,
    "max_position_embeddings": 1048576, "model_type": "deepseek_v4",
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 6,
    "num_hash_layers": 3, "num_hidden_layers": 43, "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1, "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16,
                     "original_max_position_embeddings": 65536, "type": "yarn"},
    "rope_theta": 10000, "router_aux_loss_coef": 0.001, "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus", "sliding_window": 128, "swiglu_limit": 10.0,
    "tie_word_embeddings": false, "topk_method": "noaux_tc", "vocab_size": 129280})");
  for (int i = 0; i < 44; ++i)  // one of a layer that predicts a further token
    json["compress_ratios"].push_back(i < 2 || i == 43 ? 0 : i % 2 == 0 ? 4 : 128);
  return json;
}

TEST(DeepSeekV4, InTheWordsOfItsPublishedConfigs) {
  const ModelConfig c = parse(as_published());
  EXPECT_EQ(c.model_type, "deepseek_v4");
  EXPECT_TRUE(c.latent.shared && c.attention_sinks && c.hyper.mixes);
  EXPECT_EQ(c.rotary_width, 64);
  EXPECT_EQ(c.table_layers, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_FALSE(c.entries(1).present());
  EXPECT_EQ(c.entries(2).tokens, 4);
  EXPECT_EQ(c.entries(2).top, 512);
  EXPECT_EQ(c.entries(3).tokens, 128);
  EXPECT_FALSE(c.entries(3).chosen());
  EXPECT_EQ(c.window_rope_theta, 10000);
  EXPECT_EQ(c.rope_theta, 160000);
  EXPECT_TRUE(c.attention(0).window_turns);
  EXPECT_FALSE(c.attention(2).window_turns);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(c.rope_scaling.attention_factor, 1);
  EXPECT_EQ(c.act, ops::Act::swiglu_10);
  EXPECT_FALSE(c.routing.routed_scale.has_value());
  // a layer's experts, router, attention, streams and norms, and those of 20 heavy and 21 light
  const int64_t d = 4096,
                attention = 1024 * d + 1024 + 64 * 512 * 1024 + 512 * d + 512 + 8 * 1024 * 4096 +
                            8 * 1024 * d + 64,
                streams = 2 * (24 * 4 * d + 24 + 3),
                layer = 257 * 3 * d * 2048 + 256 * d + attention + streams + 2 * d,
                heavy = 2 * 512 * d + 128 * 512 + 512,
                light = 4 * 512 * d + 4 * 1024 + 512 + 4 * 128 * d + 4 * 256 + 128 +
                        64 * 128 * 1024 + 64 * d;
  EXPECT_EQ(count_params(c).total(),
            2 * 129280 * d + d + 4 * 4 * d + 4 + 1 + 43 * layer + 20 * heavy + 21 * light);
  EXPECT_EQ(count_params(c).buffers, 3 * 129280 * 6 + 40 * 256);
}

TEST(DeepSeekV4, IsSavedAsTransformersSavesIt) {
  const ModelConfig c = parse(as_published());
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["layer_types"][1], "sliding_attention");
  EXPECT_EQ(saved["layer_types"][2], "compressed_sparse_attention");
  EXPECT_EQ(saved["layer_types"][3], "heavily_compressed_attention");
  EXPECT_EQ(saved["mlp_layer_types"][2], "hash_moe");
  EXPECT_EQ(saved["mlp_layer_types"][3], "moe");
  EXPECT_EQ(saved["compress_rates"]["heavily_compressed_attention"], 128);
  EXPECT_EQ(saved["rope_parameters"]["main"]["rope_theta"], 10000);
  EXPECT_EQ(saved["rope_parameters"]["compress"]["rope_type"], "yarn");
  EXPECT_EQ(saved["rope_parameters"]["compress"]["attention_factor"], 1);
  EXPECT_EQ(saved["partial_rotary_factor"], 0.125);
  expect_same(saved, c);
  for (const char* key : {"rope_theta", "compress_rope_theta", "initializer_range"})
    expect_same(without(saved, key), c);
}

TEST(DeepSeekV4, WhatIsRefused) {
  const Json given = as_published();
  expect_needed(
      given, {"hidden_size", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "sliding_window",
              "hc_mult", "hc_eps", "hc_sinkhorn_iters", "swiglu_limit", "routed_scaling_factor",
              "num_hash_layers", "index_topk", "compress_rope_theta", "n_shared_experts"});
  EXPECT_FAILS(parse(with(given, "swiglu_limit", 7)), "\"swiglu_limit\" is 7; only 10 is known");
  EXPECT_FAILS(parse(with(given, "num_key_value_heads", 2)), "share one key and value");
  EXPECT_FAILS(parse(with(given, "scoring_func", "sigmoid")), "\"scoring_func\"");
  EXPECT_FAILS(parse(with(given, "norm_topk_prob", false)), "\"norm_topk_prob\"");
  EXPECT_FAILS(parse(with(given, "attention_bias", true)), "\"attention_bias\"");
  EXPECT_FAILS(parse(with(given, "n_shared_experts", 2)), "\"n_shared_experts\" is 2");
  EXPECT_FAILS(parse(with(given, "hidden_act", "gelu")), "\"hidden_act\"");
  EXPECT_FAILS(parse(with(given, "qk_rope_head_dim", 512)), "and not all");
  EXPECT_FAILS(parse(with(given, "layer_types", Json::array({"full_attention"}))), "layer_types");
  EXPECT_FAILS(parse(with(given, "compress_ratios", Json::array({0, 8}))), "has 8 at layer 1");

  // What it cannot say becomes our own.
  for (const auto change :
       {+[](ModelConfig& c) { c.hyper.mixes = false; }, +[](ModelConfig& c) { c.hyper = {}; },
        +[](ModelConfig& c) { c.attention_sinks = false; },
        +[](ModelConfig& c) { c.latent.out_groups = c.latent.out_width = 0; },
        +[](ModelConfig& c) { c.act = ops::Act::silu; },
        +[](ModelConfig& c) { c.window_rope_theta = 0; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
    EXPECT_EQ(config_to_json(parse(parse_json(config_to_json(c), "x"))), config_to_json(c));
  }
  // Nor can others say what it is.
  EXPECT_FAILS(architecture_of(parse(given), "deepseek_v3", "here"),
               "one key of a token is its value too");
}

// Of a head of 8 numbers the last 4 turn, in pairs; here they are the first, in halves.
TEST(DeepSeekV4, TensorsAreCalledAndOrderedAsTheFamilyHasThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("deepseek_v4"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const std::vector<int64_t> order = {4, 6, 5, 7, 0, 1, 2, 3};  // where our number i stands there
  const auto get = [&](const std::string& name) { return file.get("model.layers." + name); };
  const auto of = [&](ParamKind kind, int64_t layer, bool bias = false) {
    return model->find(Part::attention, kind, layer, bias)->value;
  };
  const Tensor kv = get("0.attn.wkv.weight"), own = of(ParamKind::kv_a, 0);
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_EQ(kv.row<float>(order[static_cast<size_t>(i)])[1], own.row<float>(i)[1]);
  const Tensor o_a = get("0.attn.wo_a.weight"), ours = of(ParamKind::o_a, 0);
  EXPECT_EQ(describe(o_a), "f32 [6, 16]");  // two parts of three numbers, each of two heads
  for (int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(o_a.row<float>(4)[i / 8 * 8 + order[static_cast<size_t>(i % 8)]],
              ours.as<float>()[4 * 16 + i]);
  const Tensor bias = get("2.attn.compressor.ape"), of_entries = of(ParamKind::entry_bias, 2, true);
  EXPECT_EQ(describe(bias), "f32 [2, 16]");
  for (int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(bias.row<float>(1)[i / 8 * 8 + order[static_cast<size_t>(i % 8)]],
              of_entries.row<float>(1)[i]);
  EXPECT_EQ(describe(get("1.attn.compressor.wkv.weight")), "f32 [8, 8]");
  EXPECT_EQ(describe(get("2.attn.indexer.compressor.norm.weight")), "f32 [6]");
  EXPECT_EQ(describe(get("2.attn.indexer.weights_proj.weight")), "f32 [3, 8]");
  EXPECT_EQ(describe(get("0.ffn.gate.tid2eid")),
            fmt::format("f32 [256, {}]", model->config().routing.top_k));
  EXPECT_FALSE(file.contains("model.layers.0.ffn.gate.bias"));
  EXPECT_TRUE(file.contains("model.layers.1.ffn.gate.bias"));
  EXPECT_TRUE(file.contains("model.hc_head.hc_fn"));
  EXPECT_TRUE(file.contains("model.layers.0.hc_attn_base"));
}

}  // namespace
}  // namespace moe::test::deepseek_v4_test
