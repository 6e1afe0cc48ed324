// Families without experts that are Llama or Gemma 2 with windows of their own, or by another name:
// each by the sizes of a published model in the words of its class.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"

namespace moe::test::llama_kin_test {
namespace {

// Of a model like Llama without biases: embedding and head, and of each layer attention and an FFN.
int64_t numbers_of(const ModelConfig& c, int64_t ffn) {
  const int64_t attention = 2 * c.width * (c.q_width() + c.kv_heads * c.head_width);
  return (c.tied ? 1 : 2) * c.vocab * c.width + c.width +
         c.layers * (attention + 3 * c.width * ffn + 2 * c.width);
}

void expect_own(const ModelConfig& c, const char* reason) {
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, gguf_form_of(c).why_own);
}

std::vector<std::string> kinds_of(int64_t layers, int64_t every, int64_t full) {
  std::vector<std::string> kinds;
  for (int64_t i = 0; i < layers; ++i)
    kinds.emplace_back(i % every == full ? "full_attention" : "sliding_attention");
  return kinds;
}

// The defaults of CWM's class (transformers:cwm/configuration_cwm.py).
Json cwm() {
  return Json::parse(R"({
    "architectures": ["CwmForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 6144, "initializer_range": 0.02, "intermediate_size": 21504,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "cwm",
    "num_attention_heads": 48, "num_hidden_layers": 64, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0,
                        "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                        "original_max_position_embeddings": 8192},
    "sliding_window": 8192, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 128256})");
}

TEST(LlamaKin, Cwm) {
  const Json given = cwm();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "cwm");
  EXPECT_EQ(count_params(c).total(), numbers_of(c, 21504));
  EXPECT_EQ(c.attention_window, 8192);
  EXPECT_EQ(c.window_layers.size(), 48u);
  EXPECT_FALSE(c.has_window(0) || c.has_window(60));
  EXPECT_TRUE(c.has_window(1) && c.has_window(63));
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(c.window_rope_theta, 0);  // all layers turn alike
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_same(with(given, "layer_types", kinds_of(64, 4, 0)), c);
  EXPECT_EQ(parse(with(given, "layer_types", kinds_of(64, 4, 3))).has_window(0), true);
  Json older = without(given, "rope_parameters");
  older["rope_theta"] = 1000000.0;
  // Its class would scale what says nothing.
  EXPECT_FAILS(parse(older), "\"rope_parameters\" is missing");
  older["rope_scaling"] = without(given["rope_parameters"], "rope_theta");
  expect_same(older, c);
  expect_needed(given, {"head_dim", "num_key_value_heads", "sliding_window"});
  expect_refused(given, {{"mlp_bias", true}});
  EXPECT_FAILS(parse(with(given, "attention_bias", true)), "\"attention_bias\"");
  expect_own(c, "its attention sees a window of the last tokens only");
}

// The sizes of Ministral 8B (mistralai/Ministral-8B-Instruct-2410, by other programs; its own page
// was not read), in the words of its class (transformers:ministral/configuration_ministral.py).
Json ministral() {
  Json json = Json::parse(R"({
    "architectures": ["MinistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 131072,
    "model_type": "ministral", "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 100000000.0,
    "sliding_window": 32768, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 131072})");
  json["layer_types"] = kinds_of(36, 4, 0);
  return json;
}

TEST(LlamaKin, Ministral) {
  const Json given = ministral();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "ministral");
  EXPECT_EQ(count_params(c).total(), numbers_of(c, 12288));
  EXPECT_EQ(c.attention_window, 32768);
  EXPECT_EQ(c.window_layers.size(), 27u);
  EXPECT_FALSE(c.has_window(4));
  expect_same(parse_json(config_to_json(c), "x"), c);
  // A Mistral whose layers are listed is one, as transformers has it.
  expect_same(with(given, "model_type", "mistral"), c);
  const ModelConfig all = parse(without(given, "layer_types"));
  EXPECT_EQ(all.window_layers.size(), 36u);
  expect_own(all, "its attention sees a window of the last tokens only");
  Json none = with(without(given, "layer_types"), "sliding_window", nullptr);
  const ModelConfig whole = parse(none);
  EXPECT_EQ(whole.attention_window, 0);
  EXPECT_EQ(parse_json(config_to_json(whole), "x")["sliding_window"], whole.context);
  expect_same(parse_json(config_to_json(whole), "x"), whole);
  EXPECT_EQ(gguf_form_of(whole).architecture->name, "llama");
  none["layer_types"] = given["layer_types"];
  EXPECT_FAILS(parse(none), "where \"sliding_window\" null make it \"full_attention\"");
  expect_needed(given, {"num_key_value_heads", "rope_theta", "sliding_window"});
}

// The defaults of IQuest-Coder's class (transformers:iquestcoder/configuration_iquestcoder.py).
TEST(LlamaKin, IQuestCoder) {
  const Json given = Json::parse(R"({
    "architectures": ["IQuestCoderForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "intermediate_size": 27648, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "iquestcoder", "num_attention_heads": 40, "num_hidden_layers": 80,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "use_cache": true, "vocab_size": 76800})");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "iquestcoder");
  EXPECT_EQ(count_params(c).total(), numbers_of(c, 27648));
  expect_same(parse_json(config_to_json(c), "x"), c);
  Json said = with(with(given, "clip_qkv", nullptr), "use_sliding_window", false);
  said["sliding_window"] = nullptr;
  said["max_window_layers"] = 0;
  expect_same(said, c);
  expect_refused(given, {{"clip_qkv", 8.0}, {"use_sliding_window", true}});
  EXPECT_EQ(gguf_form_of(c).architecture->name, "llama");
}

// The sizes of VaultGemma 1B (google/vaultgemma-1b, by tests of github keras-team/keras-hub; its
// own page was not read), in the words of its class
// (transformers:vaultgemma/configuration_vaultgemma.py).
TEST(LlamaKin, VaultGemma) {
  const Json given = Json::parse(R"({
    "architectures": ["VaultGemmaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "bos_token_id": 2,
    "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
    "intermediate_size": 6912, "max_position_embeddings": 1024, "model_type": "vaultgemma",
    "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 4,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "sliding_window": 512, "use_cache": true, "vocab_size": 256000})");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "vaultgemma");
  EXPECT_EQ(count_params(c).total(), 1038741120);
  EXPECT_EQ(c.norm_placement, NormPlacement::pre);
  EXPECT_TRUE(c.norm_offset && c.tied);
  EXPECT_EQ(c.score_cap, 50);
  EXPECT_EQ(c.logit_cap, 30);
  EXPECT_TRUE(c.has_window(0) && !c.has_window(1) && c.has_window(24));
  EXPECT_EQ(c.multipliers.attention, 1.0f / 16);
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_same(with(given, "layer_types", kinds_of(26, 2, 1)), c);
  const ModelConfig free = parse(with(given, "attn_logit_softcapping", nullptr));
  EXPECT_EQ(free.score_cap, 0);
  EXPECT_EQ(architecture_of(free).model_type, "vaultgemma");
  expect_own(c, "its attention's scores are held back");
  expect_needed(given, {"attention_bias", "attn_logit_softcapping", "final_logit_softcapping",
                        "head_dim", "query_pre_attn_scalar", "sliding_window"});
  expect_refused(given, {{"use_bidirectional_attention", true}});
  ModelConfig other = c;
  other.norm_placement = NormPlacement::both;
  EXPECT_EQ(architecture_of(other).model_type, "gemma2");
}

// The defaults of MiniCPM3's class (transformers:minicpm3/configuration_minicpm3.py), with
// frequencies of two lengths.
TEST(LlamaKin, MiniCpm3) {
  Json given = Json::parse(R"({
    "architectures": ["MiniCPM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "dim_model_base": 256, "eos_token_id": 2, "head_dim": 32,
    "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.1,
    "intermediate_size": 6400, "kv_lora_rank": 256, "max_position_embeddings": 32768,
    "mlp_bias": false, "model_type": "minicpm3", "num_attention_heads": 40,
    "num_hidden_layers": 62, "num_key_value_heads": 40, "q_lora_rank": 768, "qk_head_dim": 96,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "scale_depth": 1.4, "scale_emb": 12, "tie_word_embeddings": true,
    "use_cache": true, "v_head_dim": 64, "vocab_size": 73448})");
  const ModelConfig plain = parse(given);
  expect_own(plain, "it has multipliers");
  given["rope_scaling"] = {{"type", "longrope"},
                           {"short_factor", std::vector<double>(16, 1.0)},
                           {"long_factor", std::vector<double>(16, 2.0)},
                           {"original_max_position_embeddings", 32768}};
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "minicpm3");
  const int64_t attention = 2560 * 768 + 768 + 768 * 40 * 96 + 2560 * (256 + 32) + 256 +
                            256 * 40 * (64 + 64) + 40 * 64 * 2560;
  EXPECT_EQ(count_params(c).total(),
            int64_t{73448} * 2560 + 2560 + 62 * (attention + 3 * 2560 * 6400 + 2 * 2560));
  EXPECT_EQ(c.latent.query_width, 768);
  EXPECT_EQ(c.multipliers.embedding, 12);
  EXPECT_FLOAT_EQ(c.multipliers.residual, 1.4f / std::sqrt(62.0f));
  EXPECT_EQ(c.multipliers.logits, 10);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(c.rope_scaling.attention_factor, 1);
  const Json written = parse_json(config_to_json(c), "x");
  expect_same(written, c);
  EXPECT_EQ(written["dim_model_base"], 256);
  EXPECT_NEAR(written["scale_depth"].get<double>(), 1.4, 1e-6);
  expect_same(without(without(given, "v_head_dim"), "head_dim"), c);
  EXPECT_EQ(parse(with(given, "q_lora_rank", nullptr)).latent.query_width, 0);
  EXPECT_EQ(parse(with(given, "scale_depth", nullptr)).multipliers.residual, 1);
  EXPECT_EQ(parse(with(given, "dim_model_base", nullptr)).multipliers.logits, 1);
  expect_needed(given, {"dim_model_base", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
                        "scale_depth", "scale_emb"});
  expect_refused(given, {{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 64}});
  given["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_FAILS(parse(given), "in another way than for long texts");
  for (const auto change : {+[](ModelConfig& of) { of.multipliers.attention = 0.5f; },
                            +[](ModelConfig& of) { of.multipliers.logits = 0.3f; }}) {
    ModelConfig other = c;
    change(other);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  }
}

}  // namespace
}  // namespace moe::test::llama_kin_test
