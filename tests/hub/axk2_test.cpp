// A.X K2's configs, as transformers writes them, and how its tensors lie.
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

namespace moe::test::axk2_test {
namespace {

// The defaults of the class, and what it makes of them
// (transformers:axk2/configuration_axk2.py).
Json axk2() {
  Json json = Json::parse(R"({
    "architectures": ["AXK2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 163691, "eos_token_id": 163691, "gated_norm_rank": 16, "head_dim": 32,
    "hidden_act": "silu", "hidden_size": 2048, "index_head_dim": 128, "index_n_heads": 16,
    "index_topk": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
    "kv_lora_rank": 128, "max_position_embeddings": 131072, "model_type": "axk2",
    "moe_intermediate_size": 512, "n_group": null, "n_routed_experts": 128,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 32,
    "output_router_logits": false, "q_lora_rank": 384, "qk_head_dim": 96,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "tie_word_embeddings": false, "topk_group": null,
    "use_cache": true, "v_head_dim": 64, "vocab_size": 163840})");
  json["layer_types"] = std::vector<std::string>(48, "indexed_attention");
  json["mlp_layer_types"] = std::vector<std::string>(48, "sparse");
  json["mlp_layer_types"][0] = "dense";
  return json;
}

TEST(AxK2, IsReadAsWhatItIs) {
  const Json given = axk2();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "axk2");
  EXPECT_EQ(c.norm_gate, 16);
  EXPECT_EQ(c.moe_layer_count(), 47);
  EXPECT_TRUE(c.attention_gate && c.latent.query_both && !c.gate_softplus);
  const AttentionShape shape = c.attention(3);
  EXPECT_EQ(shape.key_width, 96);
  EXPECT_EQ(shape.value_width, 64);
  EXPECT_EQ(shape.gates, 32 * 64);
  EXPECT_EQ(shape.latent.queries_of(), 768);
  EXPECT_EQ(shape.top, 2048);
  EXPECT_EQ(shape.index_heads, 16);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).groups, 1);
  EXPECT_EQ(std::get<ChosenScores>(spec.weigh).scale, 2.5f);
  const int64_t d = 2048,
                attention = d * 384 + 384 + 768 * 32 * (96 + 64) + d * (128 + 32) + 128 +
                            128 * 32 * (64 + 64) + 32 * 64 * d,
                indexer = 384 * 16 * 128 + d * 128 + 2 * 128 + d * 16, gate = 2 * 16 * d,
                expert = 3 * d * 512;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{163840} * d + d +
                                         48 * (attention + indexer + 2 * d + gate) + 3 * d * 5120 +
                                         47 * (gate + 128 * d + 129 * expert));
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_same(with(with(given, "n_group", 1), "topk_group", 1), c);
  expect_same(with(without(given, "mlp_layer_types"), "first_k_dense_replace", 1), c);
}

TEST(AxK2, Refuses) {
  const Json given = axk2();
  expect_needed(given, {"gated_norm_rank", "index_topk", "n_shared_experts", "q_lora_rank",
                        "routed_scaling_factor"});
  expect_refused(given, {{"n_group", 8},
                         {"topk_group", 4},
                         {"moe_layer_freq", 2},
                         {"norm_topk_prob", false},
                         {"attention_bias", true}});
  for (const auto change :
       {+[](ModelConfig& c) { c.norm_gate = 0; }, +[](ModelConfig& c) { c.sparse = {}; },
        +[](ModelConfig& c) { c.sparse.followers = {2}; },
        +[](ModelConfig& c) { c.attention_gate = false; },
        +[](ModelConfig& c) { c.latent.query_both = false; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
  ModelConfig plain = parse(given);
  plain.norm_gate = 0;
  plain.attention_gate = plain.latent.query_both = false;
  EXPECT_EQ(architecture_of(plain).model_type, "deepseek_v32");
}

// A head's queries, what turns of them last and in pairs, and behind them the head's gate; a norm
// is called otherwise where a gate stands behind it.
TEST(AxK2, TensorsLieAsTheFamilyHasThem) {
  const TempFolder folder;
  const ModelConfig c = small_family("axk2");
  const auto model = drawn_model(c, 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers." + name));
  };
  EXPECT_EQ(shape("0.input_layernorm.norm.weight"), "f32 [8]");
  EXPECT_EQ(shape("0.input_layernorm.W_down.weight"), "f32 [3, 8]");
  EXPECT_EQ(shape("0.input_layernorm.W_up.weight"), "f32 [8, 3]");
  EXPECT_EQ(shape("0.post_attention_layernorm.weight"), "f32 [8]");
  EXPECT_EQ(shape("1.post_attention_layernorm.norm.weight"), "f32 [8]");
  EXPECT_EQ(shape("1.post_attention_layernorm.W_down.weight"), "f32 [3, 8]");
  EXPECT_FALSE(file.contains("model.layers.0.post_attention_layernorm.W_down.weight"));
  // heads of 6 + 3, made of 2 x 5; of 6 two turn
  EXPECT_EQ(shape("1.self_attn.q_b_proj.weight"), "f32 [36, 10]");
  const std::vector<double> theirs = values(file.get("model.layers.1.self_attn.q_b_proj.weight")),
                            q = values(model->find(Part::attention, ParamKind::q_b, 1)->value),
                            gate =
                                values(model->find(Part::attention, ParamKind::o_gate, 1)->value);
  const auto expect_row = [&](size_t row, const std::vector<double>& of, size_t own) {
    for (size_t i = 0; i < 10; ++i) EXPECT_EQ(theirs[row * 10 + i], of[own * 10 + i]) << row;
  };
  for (size_t h = 0; h < 4; ++h) {
    for (size_t r = 0; r < 4; ++r) expect_row(h * 9 + r, q, h * 6 + 2 + r);
    for (size_t r = 0; r < 2; ++r) expect_row(h * 9 + 4 + r, q, h * 6 + r);
    for (size_t r = 0; r < 3; ++r) expect_row(h * 9 + 6 + r, gate, h * 3 + r);
  }
}

}  // namespace
}  // namespace moe::test::axk2_test
