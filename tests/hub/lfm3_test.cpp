// LFM3 by the defaults of its class (transformers:lfm3/configuration_lfm3.py), and how its tensors
// are called.
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

namespace moe::test::lfm3_test {
namespace {

Json lfm3() {
  Json json = Json::parse(R"({
    "architectures": ["Lfm3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 124894, "conv_L_cache": 7, "conv_bias": false, "eos_token_id": 124900,
    "head_dim": 128, "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7680,
    "max_position_embeddings": 128000, "model_type": "lfm3", "norm_eps": 1e-05,
    "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 4,
    "pad_token_id": 124893,
    "rope_parameters": {
      "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0,
                         "rope_type": "proportional"},
      "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 256, "tie_word_embeddings": true, "transformers_version": "5.23.0",
    "use_attention_gate": true, "use_cache": true, "use_sandwich_norm": true,
    "vocab_size": 128000})");
  for (int64_t i = 0; i < 24; ++i)
    json["layer_types"].push_back(i % 4 == 2            ? "full_attention"
                                  : i % 4 == 0 && i > 0 ? "sliding_attention"
                                                        : "conv");
  return json;
}

TEST(Lfm3, AsItsClassHasIt) {
  const Json given = lfm3();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "lfm3");
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(std::ssize(c.conv_layers), 13);
  EXPECT_EQ(c.window_layers, (std::vector<int64_t>{4, 8, 12, 16, 20}));
  EXPECT_EQ(c.conv_width, 7);
  EXPECT_EQ(c.norm_placement, NormPlacement::both);
  const AttentionShape windowed = c.attention(4), full = c.attention(2);
  EXPECT_EQ(windowed.window, 256);
  EXPECT_EQ(full.window, 0);
  EXPECT_TRUE(windowed.window_turns && !full.window_turns);
  EXPECT_EQ(c.window_rope_theta, 10000);
  EXPECT_EQ(c.rope_theta, 1000000);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::proportional);
  EXPECT_EQ(c.rope_scaling.share, 0.5f);
  EXPECT_EQ(full.gates, 16);
  EXPECT_TRUE(full.head_gates);
  const int64_t d = 2048, attention = 2 * d * d + 2 * 512 * d + 16 * d + 2 * 128,
                conv = 4 * d * d + 7 * d;
  EXPECT_EQ(count_params(c).total(),
            128000 * d + d + 24 * (4 * d + 3 * d * 7680) + 11 * attention + 13 * conv);
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_same(without(given, "attention_bias"), c);
  expect_same(without(given, "tie_word_embeddings"), c);
}

TEST(Lfm3, InOtherWords) {
  const Json given = lfm3();
  const ModelConfig plain =
      parse(with(with(given, "use_sandwich_norm", false), "use_attention_gate", false));
  EXPECT_EQ(plain.norm_placement, NormPlacement::pre);
  EXPECT_FALSE(plain.attention_gate || plain.head_gates);
  const ModelConfig biased = parse(with(given, "attention_bias", true));
  EXPECT_TRUE(biased.attention_bias && biased.attention_out_bias);
  // Without layers of a window what it would be says nothing.
  Json open = with(given, "sliding_window", nullptr);
  for (Json& type : open["layer_types"])
    if (type == "sliding_attention") type = "full_attention";
  const ModelConfig all = parse(open);
  EXPECT_EQ(all.attention_window, 0);
  EXPECT_EQ(all.window_rope_theta, 0);
  for (const ModelConfig& c : {plain, biased, all}) {
    EXPECT_EQ(parse_json(config_to_json(c), "x")["model_type"], "lfm3");
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
}

TEST(Lfm3, WhatIsRefused) {
  const Json given = lfm3();
  expect_needed(given, {"layer_types", "conv_L_cache", "sliding_window", "use_sandwich_norm",
                        "use_attention_gate", "head_dim", "norm_eps", "intermediate_size"});
  expect_refused(given, {{"conv_bias", true}});
  EXPECT_FAILS(parse(without(given, "rope_parameters")), "rope_parameters");
  Json other = given;
  other["layer_types"][3] = "mamba";
  EXPECT_FAILS(parse(other), "\"layer_types\" has \"mamba\" at layer 3");
  other = given;
  for (Json& type : other["layer_types"]) type = "full_attention";
  EXPECT_FAILS(parse(other), "none of its layers has a convolution");
  other = given;
  other["rope_parameters"]["sliding_attention"] = {
      {"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 10000.0}};
  EXPECT_FAILS(parse(other), "layers with a window turn unscaled");

  // What it cannot say becomes our own, and what it is LFM2 cannot say.
  ModelConfig c = parse(given);
  c.head_gates = false;  // a gate of each number
  EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  c = parse(given);
  c.nope_layers = {2};
  EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
  EXPECT_FAILS(architecture_of(parse(given), "lfm2", "here"), "cannot say this model");
}

// LFM3-VL's, with its words for pictures (transformers:lfm3_vl/configuration_lfm3_vl.py).
TEST(Lfm3, TheTextOfAModelOfPictures) {
  const Json json = {
      {"model_type", "lfm3_vl"},         {"architectures", {"Lfm3VlForConditionalGeneration"}},
      {"text_config", lfm3()},           {"vision_config", Json::object()},
      {"image_token_id", 125030},        {"video_token_id", 125029},
      {"vision_start_token_id", 125009}, {"vision_end_token_id", 125010},
      {"projector_hidden_act", "gelu"},  {"projector_hidden_size", 4096},
      {"projector_bias", true},          {"tie_word_embeddings", true}};
  expect_same(json, parse(lfm3()));
}

TEST(Lfm3, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("lfm3"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) { return describe(file.get("model." + name)); };
  EXPECT_EQ(shape("embedding_norm.weight"), "f32 [8]");
  EXPECT_EQ(shape("layers.0.conv.conv.weight"), "f32 [8, 1, 3]");
  EXPECT_EQ(shape("layers.0.conv.in_proj.weight"), "f32 [24, 8]");
  EXPECT_EQ(shape("layers.2.self_attn.gate_proj.weight"), "f32 [4, 8]");
  EXPECT_EQ(shape("layers.2.self_attn.o_proj.weight"), "f32 [8, 24]");
  EXPECT_EQ(shape("layers.2.self_attn.q_norm.weight"), "f32 [6]");
  EXPECT_EQ(shape("layers.3.feed_forward.w2.weight"), "f32 [8, 12]");
  const auto numbers = [&](ParamKind kind) {
    return values(model->find(Part::norms, kind, 1, false)->value);
  };
  EXPECT_EQ(values(file.get("model.layers.1.operator_norm.weight")), numbers(ParamKind::attn_norm));
  EXPECT_EQ(values(file.get("model.layers.1.post_operator_norm.weight")),
            numbers(ParamKind::attn_out_norm));
  EXPECT_EQ(values(file.get("model.layers.1.ffn_norm.weight")), numbers(ParamKind::ffn_norm));
  EXPECT_EQ(values(file.get("model.layers.1.post_ffn_norm.weight")),
            numbers(ParamKind::ffn_out_norm));
}

}  // namespace
}  // namespace moe::test::lfm3_test
