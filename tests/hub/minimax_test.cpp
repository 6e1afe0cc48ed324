// MiniMax-Text-01 and MiniMax-M1: configs in the words of transformers and in those they were
// published in, what is refused, and how tensors are called.
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

namespace moe::test::minimax_test {
namespace {

// What both spellings have in common, in the sizes of the published models.
Json sizes() {
  return Json::parse(R"({
    "attention_dropout": 0.0, "bos_token_id": null, "eos_token_id": null, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 6144, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 10240000, "num_attention_heads": 64,
    "num_experts_per_tok": 2, "num_hidden_layers": 80, "num_key_value_heads": 8,
    "num_local_experts": 32, "output_router_logits": false, "rms_norm_eps": 1e-05,
    "rotary_dim": 64, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
    "sliding_window": null, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 200064})");
}

constexpr double kAlpha = 3.5565588200778455;

// As transformers says it, of which the last layer of eight has attention.
Json minimax() {
  Json json = sizes();
  json.update(Json::parse(R"({
    "architectures": ["MiniMaxForCausalLM"], "block_size": 256, "full_attn_beta_factor": 1.0,
    "linear_attn_beta_factor": 1.0, "mlp_beta_factor": 1.0, "model_type": "minimax",
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "transformers_version": "5.23.0"})"));
  for (const char* key : {"full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"})
    json[key] = kAlpha;
  for (int64_t i = 0; i < 80; ++i)
    json["layer_types"].push_back(i % 8 == 7 ? "full_attention" : "linear_attention");
  return json;
}

// As MiniMax-M1 was published.
Json published_m1() {
  Json json = sizes();
  json.update(Json::parse(R"({
    "architectures": ["MiniMaxM1ForCausalLM"], "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
    "model_type": "minimax_m1", "postnorm": true, "rope_theta": 10000000,
    "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid",
    "transformers_version": "4.45.2"})"));
  for (const char* key : {"layernorm_full_attention_alpha", "layernorm_linear_attention_alpha",
                          "layernorm_mlp_alpha"})
    json[key] = kAlpha;
  for (int64_t i = 0; i < 80; ++i) json["attn_type_list"].push_back(i % 8 == 7 ? 1 : 0);
  return json;
}

TEST(MiniMax, IsReadAsWhatItIs) {
  const ModelConfig c = parse(minimax());
  EXPECT_EQ(c.model_type, "minimax");
  EXPECT_EQ(c.norm_placement, NormPlacement::carried);
  EXPECT_EQ(std::ssize(c.lightning_layers), 70);
  EXPECT_EQ(c.mixer(6), Mixer::lightning);
  EXPECT_EQ(c.mixer(7), Mixer::attention);
  EXPECT_EQ(c.lightning_norm_eps, 1e-6f);
  EXPECT_EQ(c.attention(7).rotary_width, 64);
  EXPECT_EQ(c.multipliers.attention_sum.kept, static_cast<float>(kAlpha));
  EXPECT_EQ(c.multipliers.attention_sum.added, 1);
  EXPECT_EQ(c.multipliers.ffn_sum, c.multipliers.lightning_sum);
  EXPECT_EQ(c.routing.recipe, "mixtral");
  EXPECT_EQ(c.routing.experts, 32);
  // published as 456B with 45.9B active
  const ParamCount count = count_params(c);
  const int64_t d = 6144, wide = 64 * 128, experts = 3 * d * 9216;
  EXPECT_EQ(count.total(), 2 * int64_t{200064} * d + d + 80 * (2 * d + 32 * d + 32 * experts) +
                               70 * (5 * wide * d + wide) + 10 * (2 * wide * d + 2 * 1024 * d));
  EXPECT_NEAR(static_cast<double>(count.total()), 456.1e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(count.active()), 45.9e9, 3e9);
  // keys and values of ten layers, and a matrix of each head in the others
  EXPECT_EQ(count_memory(c).kv_per_token_bf16, 2 * 10 * 2 * 1024);
  EXPECT_EQ(c.state_numbers(), 70 * 64 * 128 * 128);
  expect_same(parse_json(config_to_json(c), "x"), c);
}

TEST(MiniMax, AsItWasPublished) {
  const ModelConfig c = parse(minimax());
  const Json given = published_m1();
  expect_same(given, c);
  expect_same(with(given, "model_type", "minimax_text_01"), c);
  expect_same(with(given, "shared_intermediate_size", Json::array({0})), c);
  Json both = given;
  both.update(minimax());
  expect_same(both, c);
  EXPECT_FAILS(parse(with(both, "mlp_alpha_factor", 1)), "\"layernorm_mlp_alpha\" says another");
  both["layer_types"][3] = "full_attention";
  EXPECT_FAILS(parse(both), "\"attn_type_list\" lists other layers");
  EXPECT_FAILS(parse(without(given, "postnorm")), "\"postnorm\" is missing");
  expect_refused(given, {{"postnorm", false}, {"shared_intermediate_size", 1536}});
  Json other = given;
  other["attn_type_list"][5] = 2;
  EXPECT_FAILS(parse(other), "\"attn_type_list\" has 2 at layer 5");
}

TEST(MiniMax, InOtherWords) {
  const Json given = minimax();
  // Factors that are not said are 1.
  Json plain = given;
  for (const char* key : {"full_attn_alpha_factor", "full_attn_beta_factor", "mlp_beta_factor",
                          "linear_attn_alpha_factor", "mlp_alpha_factor"})
    plain.erase(key);
  EXPECT_TRUE(parse(plain).multipliers.none());
  plain["linear_attn_beta_factor"] = 2;
  EXPECT_EQ(parse(plain).multipliers.lightning_sum.added, 2);
  EXPECT_EQ(parse(plain).multipliers.attention_sum, Multipliers::Sum{});
  const ModelConfig whole = parse(without(given, "rotary_dim"));
  EXPECT_EQ(whole.attention(7).rotary_width, 128);
  Json half = without(given, "rotary_dim");
  half["rope_parameters"]["partial_rotary_factor"] = 0.5;
  expect_same(half, parse(given));
  const ModelConfig windowed = parse(with(given, "sliding_window", 4096));
  EXPECT_EQ(windowed.attention(7).window, 4096);
  Json softmax = given;
  for (Json& type : softmax["layer_types"]) type = "full_attention";
  EXPECT_TRUE(parse(softmax).lightning_layers.empty());
  for (const ModelConfig& c : {parse(plain), whole, windowed, parse(softmax)}) {
    EXPECT_EQ(parse_json(config_to_json(c), "x")["model_type"], "minimax");
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
}

TEST(MiniMax, WhatIsRefused) {
  const Json given = minimax();
  expect_needed(given, {"layer_types", "sliding_window", "num_local_experts", "rms_norm_eps"});
  expect_refused(given, {{"postnorm", false}, {"router_jitter_noise", 0.1}});
  EXPECT_FAILS(parse(with(given, "mlp_alpha_factor", 0)), "\"mlp_alpha_factor\"");
  Json other = given;
  other["layer_types"][3] = "mamba";
  EXPECT_FAILS(parse(other), "\"layer_types\" has \"mamba\" at layer 3");

  // What it cannot say becomes our own, and what it is Mixtral cannot say.
  ModelConfig c = parse(given);
  c.lightning_norm_eps = 1e-5f;
  EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  c = parse(given);
  c.norm_placement = NormPlacement::pre;
  c.multipliers = {};
  EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  c = parse(given);
  c.multipliers.embedding = 2;
  EXPECT_FAILS(architecture_of(c, "minimax", "here"), "it has multipliers");
  c = parse(given);
  c.nope_layers = {7};
  EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  EXPECT_FAILS(architecture_of(parse(given), "mixtral", "here"), "cannot say this model");
}

// Queries, keys and values stand head by head in one matrix.
TEST(MiniMax, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const ModelConfig c = small_family("minimax");
  const auto model = drawn_model(c, 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const std::string mixer = "model.layers.0.self_attn.";
  const int64_t width = c.head_width, heads = c.heads;
  EXPECT_EQ(describe(file.get(mixer + "qkv_proj.weight")),
            fmt::format("f32 [{}, {}]", 3 * heads * width, c.width));
  const auto numbers = [&](Part part, ParamKind kind) {
    return values(model->find(part, kind, 0)->value);
  };
  const std::vector<double> fused = values(file.get(mixer + "qkv_proj.weight"));
  const ParamKind kinds[] = {ParamKind::lightning_q, ParamKind::lightning_k,
                             ParamKind::lightning_v};
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t part = 0; part < 3; ++part) {
      const std::vector<double> own = numbers(Part::attention, kinds[part]);
      for (int64_t i = 0; i < width * c.width; ++i)
        ASSERT_EQ(fused[static_cast<size_t>((3 * h + part) * width * c.width + i)],
                  own[static_cast<size_t>(h * width * c.width + i)])
            << h << " " << part << " " << i;
    }
  EXPECT_EQ(values(file.get(mixer + "output_gate.weight")),
            numbers(Part::attention, ParamKind::lightning_z));
  EXPECT_EQ(values(file.get(mixer + "norm.weight")),
            numbers(Part::attention, ParamKind::lightning_norm));
  EXPECT_EQ(values(file.get(mixer + "out_proj.weight")),
            numbers(Part::attention, ParamKind::lightning_o));
  EXPECT_EQ(values(file.get("model.layers.0.input_layernorm.weight")),
            numbers(Part::norms, ParamKind::attn_norm));
  EXPECT_EQ(values(file.get("model.layers.0.block_sparse_moe.gate.weight")),
            numbers(Part::router, ParamKind::weight));
  EXPECT_TRUE(file.contains("model.layers.0.block_sparse_moe.experts.1.w2.weight"));
  EXPECT_TRUE(file.contains("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_FALSE(file.contains(mixer + "slope_rate"));
}

// Tables of what heads forget follow from the config.
TEST(MiniMax, TablesThatTransformersStoresAreReadOver) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("minimax"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  std::vector<float> table(16);
  std::vector<SafetensorsItem> also;
  for (const char* what : {"slope_rate", "query_decay", "key_decay", "diagonal_decay"})
    also.push_back({std::string("model.layers.2.self_attn.") + what,
                    Tensor(table.data(), DType::f32, {2, 8}), DType::f32});
  rewrite_tensors(
      folder.path(), [](SafetensorsItem&) { return true; }, also);
  const LoadedModel loaded = load_model(folder.path());
  for (size_t i = 0; i < model->params().size(); ++i)
    EXPECT_TRUE(same_bits(loaded.model->params()[i]->value, model->params()[i]->value))
        << model->params()[i]->name;
}

}  // namespace
}  // namespace moe::test::minimax_test
