// The texts of models of pictures and text: by the words in which their configs are published or
// transformers saves them they are the models of text that they are, and what would be another
// model is refused. More of them: families_test.cpp, dense_families_test.cpp; their tensors:
// family_folders_test.cpp.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"

namespace moe::test::texts_within_test {
namespace {

const Json kAxes = {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};

Json within(const char* type, const Json& text) {
  return {{"model_type", type}, {"text_config", text}, {"vision_config", Json::object()}};
}

void expect_same(const Json& pictures, const Json& text) {
  const FolderConfig read = read_config(pictures.dump(), "config.json");
  EXPECT_EQ(config_to_json(read.config), config_to_json(parse(text)));
  EXPECT_EQ(read.config.model_type, text["model_type"]);
  EXPECT_TRUE(read.beside_others);
}

// Qwen2.5-VL 7B's: the keys of the text, which has the sizes of Qwen2 7B, stand among those of
// pictures.
Json as_published(const char* type) { return with(published("qwen2_5_vl_7b"), "model_type", type); }
Json text_alone() { return with(published("qwen2_7b"), "max_position_embeddings", 128000); }

TEST(TextsWithin, Qwen2VlAsPublished) {
  for (const char* type : {"qwen2_vl", "qwen2_5_vl"}) {
    SCOPED_TRACE(type);
    const Json json = as_published(type);
    expect_same(json, text_alone());
    EXPECT_EQ(count_params(parse(json)).total(), 7615616512);
    EXPECT_TRUE(parse(with(json, "tie_word_embeddings", true)).tied);
    // What is not known is refused as in a config of text alone.
    EXPECT_FAILS(parse(with(json, "rope_ratio", 2)), "config.json: \"rope_ratio\" is not known");
    EXPECT_FAILS(parse(without(json, "rope_theta")), "config.json: \"rope_theta\" is missing");
  }
  const Json packed = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(read_config(with(as_published("qwen2_vl"), "quantization_config", packed).dump(), "x")
                .packing.block_rows,
            128);
  EXPECT_FAILS(parse(as_published("qwen3_vl")), "\"text_config\" is missing");
}

// transformers 4.52 to 4.57 wrote the text's config a second time, within, and reads that one.
TEST(TextsWithin, Qwen2VlSaidTwice) {
  const Json text = text_alone();
  Json inner = with(text, "model_type", "qwen2_5_vl_text"), json = as_published("qwen2_5_vl");
  inner["rope_scaling"] = {
      {"rope_type", "default"}, {"type", "default"}, {"mrope_section", {16, 24, 24}}};
  inner["sliding_window"] = inner["image_token_id"] = nullptr;
  inner["layer_types"] = std::vector<std::string>(28, "full_attention");
  json["text_config"] = inner;
  expect_same(json, text);
  expect_same(with(json, "hidden_size", 4096), text);
  EXPECT_FAILS(parse(with(json, "rope_ratio", 2)), "config.json: \"rope_ratio\" is not known");
  json["text_config"]["rope_ratio"] = 2;
  EXPECT_FAILS(parse(json), "config.json: \"text_config\": \"rope_ratio\" is not known");
}

// As transformers 5 saves it. A tied head was said within, or around, or in both.
TEST(TextsWithin, Qwen2VlAsSaved) {
  const Json text = text_alone();
  Json inner = without(without(text, "rope_theta"), "tie_word_embeddings");
  inner["model_type"] = "qwen2_vl_text";
  inner["rope_parameters"] = with(with(kAxes, "rope_type", "default"), "rope_theta", 1e6);
  const auto saved = [&](const Json& around, const Json& inside) {
    Json json = within("qwen2_vl", inner);
    if (!around.is_null()) json["tie_word_embeddings"] = around;
    if (!inside.is_null()) json["text_config"]["tie_word_embeddings"] = inside;
    return json;
  };
  expect_same(saved(false, nullptr), text);
  EXPECT_FALSE(parse(saved(false, false)).tied);
  EXPECT_TRUE(parse(saved(true, nullptr)).tied);
  EXPECT_TRUE(parse(saved(true, false)).tied);
  EXPECT_TRUE(parse(saved(false, true)).tied);
  EXPECT_TRUE(parse(saved(nullptr, true)).tied);
  EXPECT_FAILS(parse(saved(nullptr, nullptr)), "\"tie_word_embeddings\" is missing");
}

// In a text all axes of pictures count the same: what is scaled besides them is scaled, and without
// them their word means nothing.
TEST(TextsWithin, AxesOfPicturesAreNoScaling) {
  const Json text = text_alone();
  const auto scaled = [](const Json& how) {
    return with(as_published("qwen2_5_vl"), "rope_scaling", how);
  };
  expect_same(scaled(with(kAxes, "rope_type", "default")), text);
  const Json yarn = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  expect_same(scaled(with(yarn, "mrope_section", {16, 24, 24})), with(text, "rope_scaling", yarn));
  EXPECT_FAILS(parse(scaled({{"type", "mrope"}})), "\"type\" is \"mrope\"; rotary frequencies");
  EXPECT_FAILS(parse(scaled(with(kAxes, "rope_type", "linear"))), "but \"type\" is \"mrope\"");
  EXPECT_FAILS(parse(scaled(with(kAxes, "factor", 2.0))), "\"factor\" is not known");
}

// Whose text may be of several families: it is what it says.
TEST(TextsWithin, WhatTheTextSaysItIs) {
  const auto internvl = [](const Json& text) {
    Json json = within("internvl", text);
    json["downsample_ratio"] = 0.5;
    json["image_seq_length"] = 256;
    json["vision_feature_select_strategy"] = "default";
    return json;
  };
  for (const char* name : {"qwen2_7b", "qwen3_0_6b", "qwen3_30b_a3b", "gpt_oss_20b"}) {
    SCOPED_TRACE(name);
    const Json text = without(published(name), "quantization_config");
    expect_same(internvl(text), text);
  }
  const Json qwen2 = published("qwen2_7b");
  expect_same(internvl(without(without(qwen2, "model_type"), "tie_word_embeddings")), qwen2);
  EXPECT_FAILS(
      parse(internvl(published("olmoe_1b_7b_0924"))),
      "the text of \"internvl\" is \"olmoe\"; only \"qwen2\" or \"qwen3\" or \"qwen3_moe\" or "
      "\"gpt_oss\" is read of it");
  EXPECT_FAILS(parse(internvl(with(qwen2, "model_type", 2))), "the text of \"internvl\" is 2; ");
  // A base that depends on how long a text is, beyond the context.
  const Json dynamic =
      with(qwen2, "rope_scaling", {{"factor", 2.0}, {"rope_type", "dynamic"}, {"type", "dynamic"}});
  expect_same(internvl(dynamic), dynamic);
  EXPECT_TRUE(parse(internvl(dynamic)).ends_at_context());
}

// InternVL3 1B's as it was published, whose head is no embedding though that of Qwen2.5 0.5B is.
TEST(TextsWithin, InternVlAsPublished) {
  Json qwen2 = with(published("qwen2_5_0_5b"), "vocab_size", 151674);
  qwen2["rope_scaling"] = {{"factor", 2.0}, {"rope_type", "dynamic"}, {"type", "dynamic"}};
  qwen2["sliding_window"] = nullptr;
  qwen2["tie_word_embeddings"] = false;
  Json text = without(qwen2, "tie_word_embeddings");
  text["layer_types"] = std::vector<std::string>(24, "full_attention");
  text["max_window_layers"] = 70;
  text["moe_config"] = nullptr;
  text["use_bfloat16"] = true;
  Json json = {{"model_type", "internvl_chat"},
               {"architectures", {"InternVLChatModel"}},
               {"downsample_ratio", 0.5},
               {"dynamic_image_size", true},
               {"force_image_size", 448},
               {"image_fold", nullptr},
               {"llm_config", text},
               {"max_dynamic_patch", 12},
               {"min_dynamic_patch", 1},
               {"output_attentions", false},
               {"pad2square", false},
               {"ps_version", "v2"},
               {"select_layer", -1},
               {"system_message", nullptr},
               {"template", "internvl2_5"},
               {"tie_word_embeddings", false},
               {"use_backbone_lora", 0},
               {"use_llm_lora", 0},
               {"use_thumbnail", true},
               {"vision_config", Json::object()}};
  expect_same(json, qwen2);
  EXPECT_TRUE(parse(json).ends_at_context());
  json["llm_config"]["tie_word_embeddings"] = true;  // the head is the text's
  EXPECT_TRUE(parse(json).tied);
  json["llm_config"]["moe_config"] = Json::object();
  EXPECT_FAILS(parse(json), "\"llm_config\": \"moe_config\" is {}; only null");
  json["llm_config"] = without(published("qwen3_30b_a3b"), "tie_word_embeddings");
  expect_same(json, published("qwen3_30b_a3b"));
  json["llm_config"]["model_type"] = "internlm2";
  EXPECT_FAILS(parse(json), "the text of \"internvl_chat\" is \"internlm2\"; only \"qwen2\" or ");
  EXPECT_FAILS(parse(without(json, "llm_config")), "\"llm_config\" is missing");
}

// The keys of the text stand around, as in the config of a text alone.
TEST(TextsWithin, DotsOcr) {
  const Json qwen2 = published("qwen2_5_0_5b");
  Json json = with(with(qwen2, "model_type", "dots_ocr"), "attention_bias", true);
  json.update({{"image_token_id", 151665},
               {"video_token_id", 151656},
               {"initializer_range", 0.5},
               {"vision_config", Json::object()}});
  expect_same(json, with(qwen2, "initializer_range", 0.5));
  EXPECT_EQ(parse(json).init.std, 0.5f);
  for (const char* key : {"use_sliding_window", "sliding_window", "initializer_range"})
    json.erase(key);
  expect_same(json, qwen2);
  EXPECT_FAILS(parse(with(json, "attention_bias", false)),
               "\"attention_bias\" is false; only true");
  EXPECT_FAILS(parse(with(json, "rope_ratio", 2)), "config.json: \"rope_ratio\" is not known");
}

// DeepSeek-OCR's as it was published: the text's keys stand around and, a second time, within.
TEST(TextsWithin, DeepSeekOcr) {
  Json text = {{"first_k_dense_replace", 1},   {"hidden_size", 1280},
               {"intermediate_size", 6848},    {"max_position_embeddings", 8192},
               {"moe_intermediate_size", 896}, {"n_routed_experts", 64},
               {"n_shared_experts", 2},        {"num_attention_heads", 10},
               {"num_experts_per_tok", 6},     {"num_hidden_layers", 12},
               {"num_key_value_heads", 10},    {"vocab_size", 129280}};
  Json plain = published("deepseek_moe_16b");
  plain.update(text);
  text.update({{"kv_lora_rank", nullptr},
               {"lm_head", true},
               {"n_group", 1},
               {"q_lora_rank", nullptr},
               {"qk_nope_head_dim", 0},
               {"qk_rope_head_dim", 0},
               {"rm_head", false},
               {"topk_group", 1},
               {"topk_method", "greedy"},
               {"use_mla", false},
               {"v_head_dim", 0}});
  Json json = text;
  json.update({{"model_type", "deepseek_vl_v2"},
               {"architectures", {"DeepseekOCRForCausalLM"}},
               {"candidate_resolutions", {{1024, 1024}}},
               {"global_view_pos", "head"},
               {"language_config", text},
               {"projector_config", Json::object()},
               {"tile_tag", "2D"},
               {"vision_config", Json::object()}});
  expect_same(json, plain);
  const int64_t heads = 2 * int64_t{129280} * 1280, expert = int64_t{3} * 896 * 1280,
                layer = 4 * 1280 * 1280 + 2 * 1280, routed = 64 * expert + 64 * 1280 + 2 * expert;
  EXPECT_EQ(count_params(parse(json)).total(),
            heads + 12 * layer + 3 * int64_t{6848} * 1280 + 11 * routed + 1280);
  EXPECT_FAILS(parse(with(json, "use_mla", true)), "\"use_mla\" is true; only false");
  EXPECT_FAILS(parse(with(json, "kv_lora_rank", 512)), "latent attention is not supported");
  // DeepSeek-VL2's has them within alone.
  EXPECT_FAILS(parse(without(json, "hidden_size")), "config.json: \"hidden_size\" is missing");
}

// LLaVA's configs leave out what the class of the text's has as defaults.
TEST(TextsWithin, Llava) {
  Json json = within("llava", {{"model_type", "llama"},
                               {"architectures", {"LlamaForCausalLM"}},
                               {"max_position_embeddings", 4096},
                               {"rms_norm_eps", 1e-5},
                               {"vocab_size", 32064}});
  json.update({{"ignore_index", -100},
               {"image_token_index", 32000},
               {"projector_hidden_act", "gelu"},
               {"tie_word_embeddings", false},
               {"vision_feature_layer", -2},
               {"vision_feature_select_strategy", "default"},
               {"vocab_size", 32064}});
  const Json llama = published("llama_2_7b");
  expect_same(json, with(llama, "vocab_size", 32064));
  json["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(json).tied);
  // No default stands beside what transformers 5 says elsewhere.
  json["text_config"]["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(parse(json).rope_theta, 5e5f);

  json = within("llava_next", {{"model_type", "mistral"}, {"rms_norm_eps", 1e-5}});
  json["image_grid_pinpoints"] = {{336, 672}, {672, 336}};
  json["use_image_newline_parameter"] = true;
  const ModelConfig mistral = parse(json);
  EXPECT_EQ(
      config_to_json(mistral),
      config_to_json(parse(with(published("mistral_7b_v0_1"), "max_position_embeddings", 131072))));
  EXPECT_EQ(mistral.attention_window, 4096);
  json["text_config"]["sliding_window"] = nullptr;
  EXPECT_EQ(parse(json).attention_window, 0);
  json["text_config"]["tie_word_embeddings"] = true;  // here the words around it count
  EXPECT_FALSE(parse(with(json, "tie_word_embeddings", false)).tied);

  // Granite Vision's, with multipliers and without some words.
  json["text_config"] = {{"model_type", "granite"},
                         {"attention_dropout", 0.1},
                         {"attention_multiplier", 0.015625},
                         {"embedding_multiplier", 12.0},
                         {"hidden_size", 2048},
                         {"intermediate_size", 8192},
                         {"logits_scaling", 8.0},
                         {"max_position_embeddings", 131072},
                         {"num_hidden_layers", 40},
                         {"num_key_value_heads", 8},
                         {"residual_multiplier", 0.22},
                         {"rms_norm_eps", 1e-5},
                         {"rope_theta", 300000},
                         {"tie_word_embeddings", true},
                         {"vocab_size", 49156}};
  const ModelConfig granite = parse(json);
  EXPECT_EQ(granite.model_type, "granite");
  EXPECT_TRUE(granite.tied);
  EXPECT_EQ(granite.heads, 32);
  EXPECT_EQ(granite.multipliers.logits, 8);
  EXPECT_EQ(parse(without(json, "image_grid_pinpoints")).multipliers.embedding, 12);
  json["text_config"].erase("embedding_multiplier");
  EXPECT_EQ(parse(json).multipliers.embedding, 1);

  const Json qwen = published("qwen2_5_0_5b");
  Json text = qwen;
  for (const char* key : {"hidden_act", "max_position_embeddings", "rms_norm_eps",
                          "use_sliding_window", "sliding_window"})
    text.erase(key);
  json = within("llava_onevision", text);
  json["vision_aspect_ratio"] = "anyres_max_9";
  expect_same(json, qwen);
  EXPECT_FAILS(parse(within("llava_onevision", with(text, "model_type", "llama"))),
               "only \"qwen2\" is read of it");
}

// Qwen2.5-Omni's: a config within another, which is within a third.
TEST(TextsWithin, Qwen25Omni) {
  const Json qwen2 = published("qwen2_7b");
  Json text = with(without(qwen2, "tie_word_embeddings"), "model_type", "qwen2_5_omni_text");
  text["init_std"] = 0.02;
  text["rope_scaling"] = with(kAxes, "rope_type", "default");
  text["rope_scaling"]["type"] = "default";
  const auto thinker = [](const Json& of) {
    return Json{{"model_type", "qwen2_5_omni_thinker"},
                {"text_config", of},
                {"audio_config", Json::object()},
                {"vision_config", Json::object()},
                {"audio_token_index", 151646},
                {"position_id_per_seconds", 25},
                {"seconds_per_chunk", 2},
                {"user_token_id", 872}};
  };
  const auto omni = [&](const Json& of) {
    return Json{{"model_type", "qwen2_5_omni"},    {"thinker_config", thinker(of)},
                {"talker_config", Json::object()}, {"token2wav_config", Json::object()},
                {"enable_audio_output", true},     {"enable_talker", true}};
  };
  for (const Json& json : {omni(text), thinker(text)}) expect_same(json, qwen2);
  EXPECT_FALSE(parse(omni(text)).tied);
  EXPECT_TRUE(parse(omni(with(text, "tie_word_embeddings", true))).tied);
  EXPECT_FALSE(
      parse(with(thinker(with(text, "tie_word_embeddings", true)), "tie_word_embeddings", false))
          .tied);
  EXPECT_FAILS(parse(omni(with(text, "rope_ratio", 2))),
               "config.json: \"thinker_config\": \"text_config\": \"rope_ratio\" is not known");
}

// Of models that hear, with what their configs leave out: Qwen2-Audio 7B's, and Voxtral Mini's.
TEST(TextsWithin, OfSound) {
  const auto hears = [](const char* type, const Json& text) {
    return Json{{"model_type", type},
                {"text_config", text},
                {"audio_config", Json::object()},
                {"audio_token_index", 151646},
                {"vocab_size", text.value("vocab_size", 131072)}};
  };
  const Json audio = {
      {"model_type", "qwen2"},     {"intermediate_size", 11008}, {"max_position_embeddings", 8192},
      {"rope_theta", 10000},       {"rms_norm_eps", 1e-5},       {"sliding_window", 32768},
      {"torch_dtype", "bfloat16"}, {"use_mrope", false},         {"vocab_size", 156032}};
  const ModelConfig qwen2 = parse(hears("qwen2_audio", audio));
  EXPECT_EQ(qwen2.model_type, "qwen2");
  // of a layer four matrices with three biases, an FFN with a gate, and two norms
  const int64_t layer = 4 * 4096 * 4096 + 3 * 4096 + 3 * int64_t{11008} * 4096 + 2 * 4096;
  EXPECT_EQ(count_params(qwen2).total(), 32 * layer + 2 * int64_t{156032} * 4096 + 4096);
  EXPECT_EQ(qwen2.attention_window, 0);

  Json voxtral = hears("voxtral", {{"model_type", "llama"}, {"vocab_size", 131072}});
  voxtral["hidden_size"] = 3072;
  voxtral["projector_hidden_act"] = "gelu";
  voxtral["text_config"]["hidden_size"] = 3072;
  const ModelConfig llama = parse(voxtral);
  EXPECT_EQ(llama.model_type, "llama");
  EXPECT_EQ(llama.q_width(), 4096);
  EXPECT_EQ(llama.rope_theta, 1e8f);
  const int64_t of_layer = 2 * 4096 * 3072 + 2 * 1024 * 3072 + 3 * int64_t{8192} * 3072 + 2 * 3072;
  EXPECT_EQ(count_params(llama).total(), 30 * of_layer + 2 * int64_t{131072} * 3072 + 3072);
  EXPECT_FAILS(parse(hears("voxtral", {{"model_type", "qwen2"}})), "only \"llama\" is read of it");
}

// GLM-4.1V 9B's, which is GLM-4's.
TEST(TextsWithin, Glm4v) {
  const Json text = {{"model_type", "glm4v_text"},
                     {"attention_bias", true},
                     {"attention_dropout", 0.0},
                     {"hidden_act", "silu"},
                     {"hidden_size", 4096},
                     {"initializer_range", 0.02},
                     {"intermediate_size", 13696},
                     {"max_position_embeddings", 65536},
                     {"num_attention_heads", 32},
                     {"num_hidden_layers", 40},
                     {"num_key_value_heads", 2},
                     {"partial_rotary_factor", 0.5},
                     {"rms_norm_eps", 1e-5},
                     {"rope_scaling", {{"mrope_section", {8, 12, 12}}, {"rope_type", "default"}}},
                     {"rope_theta", 10000.0},
                     {"vocab_size", 151552}};
  Json glm4 = with(with(text, "model_type", "glm4"), "rope_scaling", nullptr);
  glm4["head_dim"] = 128;
  glm4["tie_word_embeddings"] = false;
  Json json = within("glm4v", text);
  json["image_start_token_id"] = 151339;
  expect_same(json, glm4);
  expect_same(within("glm4v", without(text, "attention_bias")), glm4);
  EXPECT_EQ(parse(json).rotary_width, 64);
  EXPECT_TRUE(parse(json).attention_bias);
  // As transformers 5 says it.
  Json newer =
      without(without(without(text, "rope_scaling"), "rope_theta"), "partial_rotary_factor");
  newer["rope_parameters"] = {{"rope_type", "default"},
                              {"rope_theta", 10000.0},
                              {"partial_rotary_factor", 0.5},
                              {"mrope_section", {8, 12, 12}}};
  expect_same(within("glm4v", newer), glm4);
}

// SmolVLM2 500M's as it was published: of parts that Llama has not, and of pictures.
TEST(TextsWithin, SmolVlm) {
  const Json plain = {{"model_type", "llama"},
                      {"head_dim", 64},
                      {"hidden_size", 960},
                      {"intermediate_size", 2560},
                      {"max_position_embeddings", 8192},
                      {"num_attention_heads", 15},
                      {"num_hidden_layers", 32},
                      {"num_key_value_heads", 5},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 100000},
                      {"vocab_size", 49280}};
  Json text = plain;
  text.update({{"architectures", {"VLlama3ForCausalLM"}},
               {"is_llama_config", true},
               {"neftune_noise_alpha", 0.0},
               {"pad_token_id", 2},
               {"pixel_shuffle_factor", 4},
               {"qk_layer_norms", false},
               {"rope_interleaved", false},
               {"torch_dtype", "bfloat16"},
               {"use_resampler", false}});
  Json llama = plain;
  llama["hidden_act"] = "silu";
  llama["tie_word_embeddings"] = false;
  for (const char* type : {"smolvlm", "idefics3"}) {
    SCOPED_TRACE(type);
    Json json = within(type, text);
    json.update({{"image_token_id", 49190},
                 {"scale_factor", 4},
                 {"tie_word_embeddings", false},
                 {"use_cache", false},
                 {"use_reentrant_checkpointing", false},
                 {"vocab_size", 49280}});
    expect_same(json, llama);
    for (const char* key : {"qk_layer_norms", "use_resampler"}) {
      json["text_config"][key] = true;
      EXPECT_FAILS(parse(json), fmt::format("\"{}\" is true; only false", key));
      json["text_config"][key] = false;
    }
  }
}

// LightOnOCR's, whose head is the embedding unless it says otherwise.
TEST(TextsWithin, LightOnOcr) {
  const Json qwen3 = published("qwen3_0_6b");
  Json json = within("lighton_ocr", without(qwen3, "tie_word_embeddings"));
  json.update({{"image_token_id", 151655}, {"spatial_merge_size", 2}});
  expect_same(json, with(qwen3, "tie_word_embeddings", true));
  EXPECT_FALSE(parse(with(json, "tie_word_embeddings", false)).tied);
  json["text_config"]["tie_word_embeddings"] = false;  // here the words around it count
  EXPECT_TRUE(parse(with(json, "tie_word_embeddings", true)).tied);
}

// LFM2-VL's, with its words for pictures.
TEST(TextsWithin, Lfm2Vl) {
  for (const NamedConfig& named : small_families()) {
    if (named.name != "lfm2") continue;
    const Json text = parse_json(config_to_json(named.config), "x");
    for (const char* type : {"lfm2_vl", "lfm2-vl"}) {
      SCOPED_TRACE(type);
      Json json = within(type, text);
      json.update({{"image_token_index", 396},
                   {"downsample_factor", 2},
                   {"projector_hidden_size", 2560},
                   {"projector_bias", true},
                   {"projector_use_layernorm", true},
                   {"max_num_patches", 1024},
                   {"tile_size", 512},
                   {"use_thumbnail", true}});
      expect_same(json, text);
    }
  }
}

// Cohere's, whose configs leave out what the class has as defaults.
TEST(TextsWithin, OfCohere) {
  const Json text = {{"model_type", "cohere2"},    {"hidden_size", 4096},
                     {"intermediate_size", 14336}, {"num_attention_heads", 32},
                     {"num_hidden_layers", 32},    {"num_key_value_heads", 8},
                     {"rope_theta", 50000}};
  for (const char* type : {"aya_vision", "cohere2_vision"}) {
    SCOPED_TRACE(type);
    Json json = within(type, text);
    json.update({{"adapter_layer_norm_eps", 1e-6},
                 {"alignment_intermediate_size", 28672},
                 {"downsample_factor", 2},
                 {"vision_feature_layer", -1}});
    const ModelConfig c = parse(json);
    EXPECT_EQ(c.model_type, "cohere2");
    EXPECT_TRUE(c.tied);
    EXPECT_EQ(c.vocab, 256000);
    EXPECT_EQ(c.attention_window, 4096);
    EXPECT_TRUE(c.has_window(0) && !c.has_window(3));
    EXPECT_EQ(c.nope_layers.front(), 3);
    EXPECT_EQ(c.multipliers.logits, 16);
    std::vector<std::string> types(32, "full_attention");
    types[5] = "sliding_attention";
    json["text_config"]["layer_types"] = types;
    EXPECT_EQ(parse(json).window_layers, (std::vector<int64_t>{5}));
  }
}

// Kimi's, which are DeepSeek-V3's.
TEST(TextsWithin, OfKimi) {
  const Json text = published("deepseek_v3");
  Json json = within("kimi_vl", text);
  json["media_placeholder_token_id"] = 163605;
  expect_same(json, text);
  json["model_type"] = "kimi_k25";
  json["use_unified_vision_chunk"] = true;
  json["video_placeholder"] = "<|kimi_k25_video_placeholder|>";
  expect_same(json, text);
}

// DeepSeek-OCR 2's is the first DeepSeek, as transformers 5 says it: which layers are dense is
// listed.
TEST(TextsWithin, DeepSeekOcr2) {
  const Json deepseek = published("deepseek_moe_16b");
  Json plain = with(with(deepseek, "aux_loss_alpha", 0.0), "seq_aux", false), text = plain;
  for (const char* key : {"first_k_dense_replace", "moe_layer_freq", "norm_topk_prob",
                          "scoring_func", "aux_loss_alpha", "seq_aux", "auto_map"})
    text.erase(key);
  text.update({{"model_type", "deepseek_ocr2_text"},
               {"mlp_bias", false},
               {"n_group", nullptr},
               {"topk_group", 1},
               {"routed_scaling_factor", 1.0},
               {"topk_method", "greedy"}});
  const int64_t layers = plain["num_hidden_layers"];
  text["mlp_layer_types"] = std::vector<std::string>(static_cast<size_t>(layers), "sparse");
  text["mlp_layer_types"][0] = "dense";
  expect_same(within("deepseek_ocr2", text), plain);
  const auto refused = [&](const char* key, const Json& value, const char* why) {
    EXPECT_FAILS(parse(within("deepseek_ocr2", with(text, key, value))), why);
  };
  refused("n_group", 8, "\"n_group\" is 8; only 1");
  refused("mlp_bias", true, "\"mlp_bias\" is true; only false");
  refused("topk_method", "group_limited_greedy", "only \"greedy\"");
  refused("routed_scaling_factor", 2.5, "\"routed_scaling_factor\" is 2.5");
  refused("moe_layer_freq", 2, "\"moe_layer_freq\" is 2; \"mlp_layer_types\" says");
  refused("first_k_dense_replace", 2, "\"mlp_layer_types\" says another number");
  EXPECT_FAILS(parse(within("deepseek_ocr2", without(text, "mlp_layer_types"))),
               "\"first_k_dense_replace\" is missing");
  text["mlp_layer_types"][3] = "dense";
  EXPECT_FAILS(parse(within("deepseek_ocr2", text)), "has \"dense\" at layer 3");
}

}  // namespace
}  // namespace moe::test::texts_within_test
