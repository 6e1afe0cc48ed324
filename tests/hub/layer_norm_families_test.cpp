// Families without experts whose norms are LayerNorms: each by the sizes of a published model in
// the words of its config, read as so many numbers as that has, and what its code could do that the
// engine does not refused by name.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "hub/saved_folder.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

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

// The sizes of Jais 2 8B, the defaults of its class (transformers:jais2/configuration_jais2.py).
Json jais2_8b() {
  return Json::parse(R"({
    "architectures": ["Jais2ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 150024, "head_dim": 128, "hidden_act": "relu2",
    "hidden_size": 3328, "initializer_range": 0.02, "intermediate_size": 26624,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 8192, "mlp_bias": true,
    "model_type": "jais2", "num_attention_heads": 26, "num_hidden_layers": 32,
    "num_key_value_heads": 26, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "use_cache": true, "vocab_size": 150272})");
}

TEST(LayerNormFamilies, Jais2) {
  const Json given = jais2_8b();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "jais2");
  const int64_t width = 3328, ffn = 26624,
                layer = 4 * (width * width + width) + 2 * width * ffn + ffn + width + 4 * width;
  EXPECT_EQ(count_params(c).total(), 2 * 150272 * width + 32 * layer + 2 * width);
  EXPECT_TRUE(c.norm == NormKind::layer && c.norm_bias && c.attention_out_bias && c.ffn_bias);
  EXPECT_FALSE(c.gated);
  EXPECT_EQ(c.act, ops::Act::relu2);
  expect_same(parse_json(config_to_json(c), "x"), c);
  EXPECT_EQ(gguf_form_of(c).architecture->name, "jais2");
  const ModelConfig half = parse(with(given, "attention_bias", false));
  EXPECT_TRUE(!half.attention_bias && !half.attention_out_bias && half.ffn_bias);
  expect_same(parse_json(config_to_json(half), "x"), half);
  EXPECT_NE(gguf_form_of(half).why_own, "");
  expect_needed(given, {"attention_bias", "layer_norm_eps", "mlp_bias", "num_key_value_heads",
                        "rope_theta", "tie_word_embeddings"});
  expect_refused(given, {{"hidden_act", "silu"}});
  ModelConfig other = c;
  other.norm_bias = false;
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
}

// The sizes of Pythia 70M (github EleutherAI/pythia, models/70M/pythia-70m.yml), in the words of
// the family's class (transformers:gpt_neox/configuration_gpt_neox.py,
// convert_rope_params_to_dict).
Json pythia_70m() {
  return Json::parse(R"({
    "architectures": ["GPTNeoXForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "bos_token_id": 0, "classifier_dropout": 0.1, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_dropout": 0.0, "hidden_size": 512, "initializer_range": 0.02,
    "intermediate_size": 2048, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
    "rope_scaling": null, "rotary_emb_base": 10000, "rotary_pct": 0.25,
    "tie_word_embeddings": false, "use_cache": true, "use_parallel_residual": true,
    "vocab_size": 50304})");
}

TEST(LayerNormFamilies, GptNeoX) {
  const Json given = pythia_70m();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "gpt_neox");
  EXPECT_EQ(count_params(c).total(), 70426624);
  EXPECT_EQ(c.norm_placement, NormPlacement::beside_each);
  EXPECT_TRUE(c.norm == NormKind::layer && c.norm_bias && c.attention_bias && c.ffn_bias);
  EXPECT_FALSE(c.gated || c.head_bias || c.tied);
  EXPECT_EQ(c.act, ops::Act::gelu);
  EXPECT_EQ(c.rotary_width, 16);
  EXPECT_EQ(c.rope_theta, 10000);
  const Json written = parse_json(config_to_json(c), "x");
  EXPECT_EQ(written["rotary_pct"], 0.25);
  EXPECT_EQ(written["rotary_emb_base"], 10000.0);
  EXPECT_EQ(written["rope_parameters"]["partial_rotary_factor"], 0.25);
  expect_same(written, c);
  // As transformers 5 writes it, and in the words of the family's first model.
  Json newer = without(without(given, "rotary_pct"), "rotary_emb_base");
  newer["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}};
  expect_same(newer, c);
  expect_same(without(without(given, "attention_bias"), "use_parallel_residual"), c);
  const ModelConfig sequential = parse(with(given, "use_parallel_residual", false));
  EXPECT_EQ(sequential.norm_placement, NormPlacement::pre);
  EXPECT_EQ(parse_json(config_to_json(sequential), "x")["use_parallel_residual"], false);
  const ModelConfig bare = parse(with(given, "attention_bias", false));
  EXPECT_TRUE(!bare.attention_bias && !bare.attention_out_bias && bare.ffn_bias);
  const ModelConfig stretched =
      parse(with(given, "rope_scaling", Json{{"type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(stretched.rope_scaling.factor, 2);
  expect_same(parse_json(config_to_json(stretched), "x"), stretched);
  // llama.cpp takes the exact GELU for the one by tanh, which the first model has.
  EXPECT_NE(gguf_form_of(c).why_own.find("its activation is another"), std::string::npos);
  for (const bool beside : {true, false}) {
    Json fast = with(given, "hidden_act", "gelu_fast");
    fast["use_parallel_residual"] = beside;
    EXPECT_EQ(gguf_form_of(parse(fast)).architecture->name, "gptneox");
  }
}

TEST(LayerNormFamilies, GptNeoXRefuses) {
  const Json given = pythia_70m();
  expect_needed(given, {"hidden_act", "intermediate_size", "layer_norm_eps", "rotary_emb_base",
                        "rotary_pct", "tie_word_embeddings"});
  expect_refused(with(given, "partial_rotary_factor", 0.5), {{"rotary_pct", 0.25}});
  expect_refused(with(given, "rope_theta", 500.0), {{"rotary_emb_base", 10000}});
  EXPECT_FAILS(parse(with(given, "rotary_pct", 0.01)), "of each head turns");
  EXPECT_FAILS(parse(with(given, "num_attention_heads", 7)), "\"num_attention_heads\" is 7");
  EXPECT_FAILS(parse(with(given, "num_key_value_heads", 8)), "\"num_key_value_heads\"");
  for (const auto change :
       {+[](ModelConfig& of) { of.kv_heads = 2; },
        +[](ModelConfig& of) { of.attention_bias = false; },
        +[](ModelConfig& of) { of.head_bias = true; }, +[](ModelConfig& of) { of.dropout = 0.1f; },
        +[](ModelConfig& of) { of.nope_layers = {3}; }}) {
    ModelConfig other = parse(given);
    change(other);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  }
}

// The sizes of Phi-2 (huggingface microsoft/phi-2, by other programs; its own page was not read),
// in the words of its class (transformers:phi/configuration_phi.py).
Json phi_2() {
  return Json::parse(R"({
    "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256,
    "embd_pdrop": 0.0, "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560,
    "initializer_range": 0.02, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
    "qk_layernorm": false, "resid_pdrop": 0.1, "rope_scaling": null, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "use_cache": true, "vocab_size": 51200})");
}

TEST(LayerNormFamilies, Phi) {
  const Json given = phi_2();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "phi");
  EXPECT_EQ(count_params(c).total(), 2779683840);
  EXPECT_EQ(c.norm_placement, NormPlacement::beside);
  EXPECT_TRUE(c.norm_bias && c.attention_out_bias && c.ffn_bias && c.head_bias);
  EXPECT_EQ(c.act, ops::Act::gelu_tanh);
  EXPECT_EQ(c.rotary_width, 32);
  const Json written = parse_json(config_to_json(c), "x");
  EXPECT_EQ(written["hidden_act"], "gelu_new");
  EXPECT_EQ(written["rope_parameters"]["partial_rotary_factor"], 0.4);
  expect_same(written, c);
  expect_same(with(given, "num_key_value_heads", nullptr), c);
  expect_same(without(given, "qk_layernorm"), c);
  EXPECT_EQ(parse(without(given, "partial_rotary_factor")).rotary_width, 40);  // half of a head
  const ModelConfig whole = parse(with(given, "partial_rotary_factor", 1.0));
  EXPECT_EQ(whole.rotary_width, 0);
  expect_same(parse_json(config_to_json(whole), "x"), whole);
  EXPECT_EQ(gguf_form_of(c).architecture->name, "phi2");
}

TEST(LayerNormFamilies, PhiRefuses) {
  const Json given = phi_2();
  expect_needed(given, {"hidden_act", "layer_norm_eps", "rope_theta", "tie_word_embeddings"});
  expect_refused(given, {{"qk_layernorm", true}});
  for (const auto change : {+[](ModelConfig& of) { of.head_bias = false; },
                            +[](ModelConfig& of) { of.attention_out_bias = false; },
                            +[](ModelConfig& of) { of.ffn_bias = false; },
                            +[](ModelConfig& of) { of.norm_offset = true; }}) {
    ModelConfig other = parse(given);
    change(other);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  }
}

void expect_numbers_of(const LoadedModel& loaded, const Model& want) {
  ASSERT_EQ(loaded.model->params().size(), want.params().size());
  for (size_t i = 0; i < want.params().size(); ++i) {
    const Param &got = *loaded.model->params()[i], &wanted = *want.params()[i];
    SCOPED_TRACE(wanted.name);
    if (wanted.value.rank < 2) EXPECT_EQ(values(got.value), values(wanted.value));
    else
      for (int64_t e = 0; e < wanted.value.matrices(); ++e)
        EXPECT_EQ(values(got.expert(e)), values(wanted.expert(e)));
  }
}

// Head by head queries, keys and values, of biases too; what published files hold beside weights
// is passed over, and the head may have its newer name.
TEST(LayerNormFamilies, TensorsOfGptNeoX) {
  const auto model = drawn_model(small_family("gpt_neox"), 5);
  const TempFolder folder;
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const ModelConfig& c = model->config();
  for (const bool bias : {false, true}) {
    const Tensor there = file.get(
        fmt::format("gpt_neox.layers.1.attention.query_key_value.{}", bias ? "bias" : "weight"));
    EXPECT_EQ(describe(there), bias ? "f32 [48]" : "f32 [48, 16]");
    const int64_t cols = bias ? 1 : c.width;
    int64_t part = 0;
    for (const ParamKind kind : {ParamKind::q, ParamKind::k, ParamKind::v}) {
      const Tensor ours = model->find(Part::attention, kind, 1, bias)->value;
      for (int64_t r = 0; r < c.q_width(); ++r)
        for (int64_t i = 0; i < cols; ++i)
          EXPECT_EQ(there.as<float>()[((r / 4 * 3 + part) * 4 + r % 4) * cols + i],
                    ours.as<float>()[r * cols + i])
              << part << " row " << r;
      ++part;
    }
  }
  EXPECT_TRUE(file.contains("embed_out.weight"));
  EXPECT_TRUE(file.contains("gpt_neox.layers.0.mlp.dense_4h_to_h.bias"));
  expect_numbers_of(load_model(folder.path()), *model);
  expect_numbers_of(open_model(folder.path(), {}), *model);
  float number = 0;
  rewrite_tensors(
      folder.path(),
      [](SafetensorsItem& item) {
        if (item.name == "embed_out.weight") item.name = "lm_head.weight";
        return true;
      },
      {{"gpt_neox.layers.0.attention.masked_bias", Tensor(&number, DType::f32, {1}), DType::f32},
       {"gpt_neox.layers.1.attention.rotary_emb.inv_freq", Tensor(&number, DType::f32, {1}),
        DType::f32}});
  expect_numbers_of(open_model(folder.path(), {}), *model);
}

TEST(LayerNormFamilies, TensorsOfPhi) {
  const auto model = drawn_model(small_family("phi"), 5);
  const TempFolder folder;
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  for (const char* name :
       {"model.layers.1.self_attn.dense.bias", "model.layers.1.self_attn.q_proj.bias",
        "model.layers.1.mlp.fc1.weight", "model.layers.1.mlp.fc2.bias",
        "model.layers.1.input_layernorm.bias", "model.final_layernorm.bias", "lm_head.bias"})
    EXPECT_TRUE(file.contains(name)) << name;
  EXPECT_FALSE(file.contains("model.layers.1.post_attention_layernorm.weight"));
  expect_numbers_of(open_model(folder.path(), {}), *model);
}

}  // namespace
}  // namespace moe::test::layer_norm_families_test
