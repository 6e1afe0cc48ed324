// Families without experts whose norms are LayerNorms: each by the sizes of a published model in
// the words of its config, read as so many numbers as that has, and what its code could do that the
// engine does not refused by name.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"

namespace moe::test::layer_norm_families_test {
namespace {

// The sizes of OLMo 1B (arXiv 2402.00838, table 1), in the words of its class
// (transformers:olmo/configuration_olmo.py).
Json olmo_1b() {
  return Json::parse(R"({
    "architectures": ["OlmoForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "clip_qkv": null, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 2048,
    "model_type": "olmo", "num_attention_heads": 16, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "pad_token_id": 1, "rope_scaling": null, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "use_cache": true, "vocab_size": 50304})");
}

// Embedding, and of each layer four projections and three of an FFN: its norms have no numbers.
TEST(LayerNormFamilies, Olmo) {
  const Json given = olmo_1b();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "olmo");
  EXPECT_EQ(count_params(c).total(),
            int64_t{50304} * 2048 + 16 * (4 * int64_t{2048} * 2048 + 3 * int64_t{2048} * 8192));
  EXPECT_TRUE(c.norm == NormKind::layer && c.tied && c.gated);
  EXPECT_FALSE(c.norm_weights || c.norm_bias);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.qkv_clip, 0);
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_same(without(given, "clip_qkv"), c);
  EXPECT_EQ(gguf_form_of(c).architecture->name, "olmo");
  const ModelConfig clipped = parse(with(given, "clip_qkv", 8.0));  // as of the 7B
  EXPECT_EQ(clipped.qkv_clip, 8);
  expect_same(parse_json(config_to_json(clipped), "x"), clipped);
  EXPECT_EQ(gguf_form_of(clipped).architecture->name, "olmo");
  const ModelConfig biased = parse(with(given, "attention_bias", true));
  EXPECT_TRUE(biased.attention_bias && biased.attention_out_bias && !biased.ffn_bias);
  EXPECT_NE(gguf_form_of(biased).why_own, "");
}

TEST(LayerNormFamilies, OlmoRefuses) {
  const Json given = olmo_1b();
  expect_needed(given, {"attention_bias", "hidden_act", "num_key_value_heads", "rope_theta",
                        "tie_word_embeddings"});
  EXPECT_FAILS(parse(with(given, "clip_qkv", 0.0)), "\"clip_qkv\" is 0");
  EXPECT_FAILS(parse(with(given, "layer_norm_eps", 1e-6)), "\"layer_norm_eps\"");
  for (const auto change : {+[](ModelConfig& of) { of.norm_weights = true; },
                            +[](ModelConfig& of) { of.norm_eps = 1e-6f; },
                            +[](ModelConfig& of) { of.norm = NormKind::rms; }}) {
    ModelConfig other = parse(given);
    change(other);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  }
}

}  // namespace
}  // namespace moe::test::layer_norm_families_test
