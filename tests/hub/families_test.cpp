// Configs of other programs' families: what they publish is read as what it is, and every key that
// decides about the mathematics is needed. Their tensors: family_folders_test.cpp.
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::families_test {
namespace {

ChosenScores::Renormalise weigh(const ModelConfig& c) {
  return std::get<ChosenScores>(eval_spec(c.routing).weigh).renormalise;
}

TEST(Families, PublishedConfigs) {
  const ModelConfig llama2 = parse(published("llama_2_7b"));
  EXPECT_EQ(llama2.rope_theta, 10000);
  EXPECT_EQ(llama2.dense_width, 11008);
  EXPECT_EQ(llama2.head_width, 128);
  EXPECT_FALSE(llama2.attention_bias || llama2.ffn_bias || llama2.tied);
  const ModelConfig llama31 = parse(published("llama_3_1_8b"));
  EXPECT_EQ(llama31.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(llama31.rope_scaling.factor, 8);
  EXPECT_EQ(llama31.rope_scaling.original_context, 8192);
  EXPECT_EQ(llama31.rope_scaling.high_freq_factor, 4);
  EXPECT_EQ(llama31.rope_theta, 500000);
  EXPECT_EQ(parse(published("llama_3_2_1b")).head_width, 64);
  const ModelConfig smol = parse(published("smollm2_135m"));
  EXPECT_EQ(smol.head_width, 64);
  EXPECT_EQ(smol.kv_heads, 3);
  EXPECT_TRUE(smol.tied);
  EXPECT_EQ(parse(published("tinyllama_1_1b")).kv_heads, 4);
  EXPECT_EQ(parse(published("mistral_7b_v0_3")).vocab, 32768);
  EXPECT_EQ(parse(published("mistral_7b_v0_3")).attention_window, 0);
  EXPECT_EQ(parse(published("mistral_7b_v0_1")).attention_window, 4096);
  EXPECT_EQ(
      parse(with(with(published("qwen2_7b"), "use_sliding_window", true), "max_window_layers", 0))
          .attention_window,
      131072);
  for (const char* name : {"qwen2_5_0_5b", "qwen2_7b"}) {
    const ModelConfig c = parse(published(name));
    EXPECT_TRUE(c.attention_bias && !c.attention_out_bias) << name;
  }
  const ModelConfig qwen3 = parse(published("qwen3_0_6b"));
  EXPECT_EQ(qwen3.qk_norm, QkNorm::head);
  EXPECT_EQ(qwen3.head_width, 128);
  const ModelConfig a27 = parse(published("qwen1_5_moe_a2_7b"));
  EXPECT_EQ(a27.routing.experts, 60);
  EXPECT_EQ(a27.shared_width, 5632);
  EXPECT_TRUE(a27.shared_gate && a27.attention_bias && !a27.attention_out_bias);
  EXPECT_EQ(a27.moe_layer_count(), 24);
  EXPECT_EQ(weigh(a27), ChosenScores::Renormalise::never);
  const ModelConfig a3b = parse(published("qwen3_30b_a3b"));
  EXPECT_EQ(a3b.routing.recipe, "qwen3-moe");
  EXPECT_NE(weigh(a3b), ChosenScores::Renormalise::never);
  EXPECT_EQ(a3b.head_width, 128);
  const ModelConfig mixtral = parse(published("mixtral_8x7b"));
  EXPECT_EQ(mixtral.expert_width, 14336);
  EXPECT_NE(weigh(mixtral), ChosenScores::Renormalise::never);
  EXPECT_FLOAT_EQ(mixtral.routing.coef.balance, 0.04f);
  const ModelConfig gpt2 = parse(published("gpt2"));
  EXPECT_TRUE(gpt2.tied && gpt2.norm_bias && gpt2.attention_out_bias && !gpt2.gated);
  EXPECT_EQ(gpt2.act, ops::Act::gelu_tanh);
  EXPECT_EQ(gpt2.dense_width, 3072);
  EXPECT_EQ(gpt2.dropout, 0.1f);
  EXPECT_EQ(parse(published("olmoe_1b_7b_0924")).qk_norm, QkNorm::full);
}

TEST(Families, PublishedConfigsOfDeepSeekAndGlm) {
  const ModelConfig deepseek = parse(published("deepseek_moe_16b"));
  EXPECT_EQ(deepseek.moe_layer_count(), 27);
  EXPECT_EQ(deepseek.shared_experts * deepseek.shared_width, 2816);
  EXPECT_EQ(deepseek.dense_width, 10944);
  EXPECT_EQ(weigh(deepseek), ChosenScores::Renormalise::never);
  EXPECT_EQ(deepseek.routing.balance_over, BalanceOver::sequence);
  const ModelConfig lite = parse(published("deepseek_v2_lite")),
                    v3 = parse(published("deepseek_v3"));
  EXPECT_EQ(lite.latent.query_width, 0);
  EXPECT_EQ(lite.head_width, 192);
  EXPECT_EQ(lite.attention(0).cached_key_width() + lite.attention(0).cached_value_width(), 576);
  EXPECT_EQ(eval_spec(lite.routing).slots(), 6);
  EXPECT_EQ(v3.latent.query_width, 1536);
  EXPECT_EQ(v3.moe_layer_count(), 58);
  const RoutingSpec spec = eval_spec(v3.routing);
  const auto& groups = std::get<GroupedTopK>(spec.select);
  EXPECT_EQ(groups.groups, 8);
  EXPECT_EQ(groups.keep, 4);
  // (0.1 ln 40 + 1)^2, in the family's code beside 1 / sqrt(192)
  EXPECT_NEAR(v3.attention(0).score_factor, 1.8738, 1e-4);
  EXPECT_EQ(v3.rope_scaling.attention_factor, 1);
  // of arXiv 2405.04434 and 2412.19437
  EXPECT_NEAR(static_cast<double>(count_params(lite).total()), 15.7e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(count_params(v3).total()), 671e9, 0.5e9);
  const ModelConfig glm = parse(published("glm_4_5_air"));
  EXPECT_EQ(glm.rotary_width, 64);
  EXPECT_EQ(glm.qk_norm, QkNorm::none);
  EXPECT_TRUE(glm.attention_bias && !glm.attention_out_bias);
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(glm.routing).weigh).scale, 1);
  // "GLM-4.5-Air: 106B", less the layer that predicts a further token
  EXPECT_NEAR(static_cast<double>(count_params(glm).total()), 106.8e9, 0.5e9);
}

TEST(Families, PublishedConfigsOfSpecialAttention) {
  const ModelConfig olmo2 = parse(published("olmo_2_7b"));
  EXPECT_EQ(olmo2.norm_placement, NormPlacement::output);
  EXPECT_NEAR(static_cast<double>(count_params(olmo2).total()), 7.3e9, 0.05e9);
  const ModelConfig smollm3 = parse(published("smollm3_3b"));
  EXPECT_TRUE(smollm3.tied);
  EXPECT_EQ(smollm3.nope_layers.size(), 9u);
  EXPECT_EQ(smollm3.attention(3).rotary_width, 0);
  EXPECT_EQ(smollm3.attention(4).rotary_width, 128);
  const ModelConfig granite = parse(published("granite_3_0_1b_a400m"));
  EXPECT_FLOAT_EQ(granite.attention(0).score_factor, 0.125f);
  EXPECT_NEAR(static_cast<double>(count_params(granite).total()), 1.3e9, 0.05e9);
  const ModelConfig next = parse(published("qwen3_next_80b_a3b"));
  EXPECT_EQ(std::ssize(next.linear_layers), 36);
  EXPECT_TRUE(next.is_linear(2) && !next.is_linear(3) && next.attention_gate && next.norm_offset);
  EXPECT_EQ(next.linear.channels(), 8192);
  EXPECT_EQ(next.attention(3).rotary_width, 64);
  EXPECT_NEAR(static_cast<double>(count_params(next).total()), 79.7e9, 0.1e9);
  EXPECT_EQ(count_memory(next).kv_per_token_bf16, 2 * 12 * 2 * 2 * 256);
}

// Llama 2's heads of 128 with a base that is stretched: 10000 * 1000^(128/126).
TEST(Families, HunYuanStretchesTheBaseOfItsTurns) {
  Json hunyuan = with(published("mixtral_8x7b"), "model_type", "hunyuan_v1_moe");
  for (const auto& [key, value] : {std::pair<const char*, Json>{"num_experts", 8},
                                   {"moe_topk", std::vector<int>(32, 2)},
                                   {"attention_bias", false},
                                   {"rope_theta", 10000},
                                   {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000}}},
                                   {"attention_head_dim", 128},
                                   {"moe_layer_num_skipped", 0},
                                   {"norm_topk_prob", true},
                                   {"routed_scaling_factor", 1.0},
                                   {"use_mla", false},
                                   {"kv_lora_rank", nullptr},
                                   {"n_group", nullptr},
                                   {"pool_type", "last"}})
    hunyuan[key] = value;
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "sliding_window"})
    hunyuan.erase(key);
  EXPECT_FLOAT_EQ(parse(hunyuan).rope_theta, 11158839.925f);
  EXPECT_EQ(parse(hunyuan).routing.top_k, 2);
  EXPECT_TRUE(parse(hunyuan).qk_norm_turned);
  EXPECT_FAILS(parse(with(hunyuan, "attention_head_dim", 64)), "\"head_dim\" is another width");
  EXPECT_FAILS(parse(with(hunyuan, "moe_layer_num_skipped", 1)), "only 0 is of this family");
  hunyuan["moe_topk"][3] = 4;
  EXPECT_FAILS(parse(hunyuan), "\"moe_topk\" is ");
}

TEST(Families, PublishedConfigsWithWindows) {
  const ModelConfig olmo3 = parse(published("olmo_3_7b"));
  EXPECT_TRUE(olmo3.attention(0).window_turns && !olmo3.attention(3).window_turns);
  EXPECT_EQ(olmo3.window_rope_theta, 500000);
  EXPECT_EQ(olmo3.rope_scaling.kind, RopeScaling::Kind::yarn);
  const ModelConfig gemma = parse(published("gemma_3_1b"));
  EXPECT_EQ(gemma.window_rope_theta, 10000);
  EXPECT_EQ(gemma.multipliers.attention, 1.0f / 16);
  EXPECT_EQ(count_params(gemma).total(), 999885952);
  const ModelConfig gemma4b = parse(published("gemma_3_4b"));
  EXPECT_EQ(gemma4b.model_type, "gemma3_text");
  EXPECT_EQ(gemma4b.vocab, 262208);
  EXPECT_TRUE(gemma4b.tied && gemma4b.attention(0).window == 1024 &&
              gemma4b.attention(5).window == 0);
  EXPECT_EQ(gemma4b.rope_scaling.kind, RopeScaling::Kind::linear);
  const ModelConfig oss = parse(published("gpt_oss_20b"));
  EXPECT_TRUE(oss.has_window(0) && !oss.has_window(1) && oss.attention_sinks);
  EXPECT_FALSE(oss.rope_scaling.truncate);
  // arXiv 2508.10925, table 1
  EXPECT_NEAR(static_cast<double>(count_params(oss).total()), 20.91e9, 0.01e9);
}

// Keys of training, of further tokens and of other programs stand in these, and some that can say
// one thing only.
TEST(Families, PublishedConfigsOfLaterModels) {
  const Json given = published("minimax_m2_7"), pictures = published("qwen3_5_35b_a3b");
  const ModelConfig minimax = parse(given), qwen = parse(pictures),
                    glm = parse(published("glm_4_7_flash")),
                    ernie = parse(published("ernie_4_5_21b_a3b"));
  EXPECT_EQ(minimax.qk_norm, QkNorm::full);
  EXPECT_EQ(minimax.rotary_width, 64);
  // its tensors without the scales of FP8
  EXPECT_NEAR(static_cast<double>(count_params(minimax).total()), 228.69e9, 0.001e9);
  EXPECT_EQ(qwen.model_type, "qwen3_5_moe_text");
  EXPECT_EQ(std::ssize(qwen.linear_layers), 30);
  EXPECT_EQ(qwen.attention(3).rotary_width, 64);
  EXPECT_NEAR(static_cast<double>(count_params(qwen).total()), 34.66e9, 0.01e9);
  EXPECT_EQ(glm.dense_first, 1);
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(glm.routing).weigh).scale, 1.8f);
  EXPECT_NEAR(static_cast<double>(count_params(glm).total()), 29.94e9, 0.01e9);
  EXPECT_TRUE(ernie.tied);
  EXPECT_EQ(ernie.shared_experts * ernie.shared_width, 3072);
  EXPECT_NEAR(static_cast<double>(count_params(ernie).total()), 21.83e9, 0.01e9);
  EXPECT_EQ(minimax.routing.coef.balance + ernie.routing.coef.balance, 0);
  EXPECT_EQ(count_params(parse(published("deepseek_v3_1"))).total(),
            count_params(parse(published("deepseek_v3"))).total());
  // MiniMax-M2, and Qwen's newer ones.
  Json m2 = with(with(given, "mlp_intermediate_size", 8192), "sliding_window", nullptr);
  for (const char* key :
       {"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"})
    m2[key] = 1.0;
  EXPECT_EQ(config_to_json(parse(m2)), config_to_json(minimax));
  Json newer = with(pictures, "language_model_only", false);
  newer["text_config"]["output_gate_type"] = "swish";
  EXPECT_EQ(config_to_json(parse(newer)), config_to_json(qwen));
  newer["text_config"]["output_gate_type"] = "sigmoid";
  EXPECT_FAILS(parse(newer), "\"output_gate_type\" is \"sigmoid\"; only \"swish\"");
  newer = pictures;
  newer["text_config"]["mlp_only_layers"].push_back(1);
  EXPECT_FAILS(parse(newer), "\"mlp_only_layers\" is [1]; only []");
}

// Other words of published configs, and of those that other programs leave, for the same models.
TEST(Families, WordsThatChangeNothing) {
  const auto same = [](const Json& given, const Json& as) {
    EXPECT_EQ(config_to_json(parse(given)), config_to_json(parse(as)));
  };
  const Json qwen3 = published("qwen3_30b_a3b");
  Json coder = without(qwen3, "attention_bias");  // Qwen3-Coder's
  struct Word {
    const char* key;
    Json value, other;
  };
  for (const Word& word : {Word{"qkv_bias", false, true},
                           {"shared_expert_intermediate_size", 0, 768},
                           {"use_qk_norm", true, false}}) {
    coder[word.key] = word.value;
    EXPECT_FAILS(parse(with(qwen3, word.key, word.other)),
                 fmt::format("\"{}\" is {}", word.key, word.other.dump()));
  }
  same(coder, qwen3);
  same(with(with(qwen3, "unsloth_fixed", true), "unsloth_version", "2026.4.5"), qwen3);
  same(with(qwen3, "_attn_implementation_autoset", true), qwen3);
  same(with(published("deepseek_v3"), "model_type", "kimi_k2"), published("deepseek_v3"));
  EXPECT_EQ(parse(with(published("deepseek_v3"), "model_type", "kimi_k2")).model_type,
            "deepseek_v3");
  // The words of LFM2 for a tied head.
  ModelConfig lfm2 = small_config();
  lfm2.model_type = "lfm2_moe";
  lfm2.qk_norm = QkNorm::head;
  lfm2.conv_layers = {0};
  lfm2.conv_width = 3;
  lfm2.tied = true;
  lfm2.routing = default_options(find_recipe("deepseek-v3"), 3, 2, lfm2.layers);
  lfm2.routing.expert_groups = lfm2.routing.groups_kept = 1;
  const Json tied = parse_json(config_to_json(lfm2), "x");
  ASSERT_EQ(tied["model_type"], "lfm2_moe");
  same(with(without(tied, "tie_word_embeddings"), "tie_embedding", true), tied);
  EXPECT_FALSE(parse(with(tied, "tie_embedding", false)).tied);
}

// Of models of pictures and text: what stands around the config of the text counts for it, or is of
// pictures.
TEST(Families, TextWithinOthers) {
  const auto within = [](const char* type, const Json& text, const Json& beside = {}) {
    Json json = {{"model_type", type}, {"text_config", text}, {"vision_config", Json::object()}};
    if (beside.is_object()) json.update(beside);
    return json;
  };
  const Json qwen3 = published("qwen3_30b_a3b"), air = published("glm_4_5_air");
  Json text = with(qwen3, "model_type", "qwen3_vl_moe_text");  // Qwen3-VL's
  for (const char* key : {"tie_word_embeddings", "router_aux_loss_coef", "use_sliding_window",
                          "sliding_window", "max_window_layers", "output_router_logits"})
    text.erase(key);
  text["rope_scaling"] = {
      {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}, {"rope_type", "default"}};
  const ModelConfig pictures =
      parse(within("qwen3_vl_moe", text, {{"tie_word_embeddings", false}}));
  ModelConfig plain = parse(qwen3);
  plain.routing.coef.balance = 0;
  EXPECT_EQ(config_to_json(pictures), config_to_json(plain));
  EXPECT_FALSE(parse(within("qwen3_vl_moe", with(text, "tie_word_embeddings", true),
                            {{"tie_word_embeddings", false}}))
                   .tied);
  text = without(without(air, "use_qk_norm"), "num_nextn_predict_layers");  // GLM-4.5V's
  text["image_token_id"] = 151363;
  text["rope_scaling"] = {{"mrope_section", {8, 12, 12}}, {"rope_type", "default"}};
  EXPECT_EQ(config_to_json(parse(within("glm4v_moe", text))), config_to_json(parse(air)));

  for (const NamedConfig& named : small_families()) {
    if (named.name != "gemma4_text") continue;
    const Json gemma = parse_json(config_to_json(named.config), "x");
    EXPECT_EQ(
        config_to_json(parse(within("gemma4", gemma, {{"vision_soft_tokens_per_image", 280}}))),
        config_to_json(named.config));
  }

  const Json given = published("qwen3_5_35b_a3b");
  const auto packed = [&](const Json& how) {
    return read_config(with(given, "quantization_config", how).dump(), "config.json").packing;
  };
  EXPECT_EQ(packed({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}).block_rows, 128);
  EXPECT_FAILS(packed({{"quant_method", "hqq"}}), "\"quant_method\" is \"hqq\"");
}

// The one of Qwen3-Omni's models that writes text: a config within another, which is within a
// third.
TEST(Families, TheTextOfSeveralModels) {
  const Json qwen3 = published("qwen3_30b_a3b");
  Json text = with(qwen3, "model_type", "qwen3_omni_moe_text");
  for (const char* key : {"tie_word_embeddings", "use_sliding_window", "max_window_layers"})
    text.erase(key);
  text["shared_expert_intermediate_size"] = 0;
  text["use_qk_norm"] = true;
  text["rope_scaling"] = {{"interleaved", true},
                          {"mrope_interleaved", true},
                          {"mrope_section", {24, 20, 20}},
                          {"rope_type", "default"},
                          {"type", "default"}};
  const auto thinker = [](const Json& its_text) {
    return Json{{"model_type", "qwen3_omni_moe_thinker"},
                {"text_config", its_text},
                {"audio_config", Json::object()},
                {"vision_config", Json::object()},
                {"audio_token_id", 151675},
                {"initializer_range", 0.02},
                {"position_id_per_seconds", 13},
                {"seconds_per_chunk", 2}};
  };
  const auto omni = [&](const Json& its_text) {
    return Json{{"model_type", "qwen3_omni_moe"},       {"thinker_config", thinker(its_text)},
                {"talker_config", Json::object()},      {"code2wav_config", Json::object()},
                {"enable_audio_output", true},          {"im_start_token_id", 151644},
                {"transformers_version", "4.57.0.dev0"}};
  };
  for (const Json& json : {omni(text), thinker(text)}) {
    const FolderConfig read = read_config(json.dump(), "config.json");
    EXPECT_EQ(config_to_json(read.config), config_to_json(parse(qwen3)));
    EXPECT_TRUE(read.beside_others);
  }
  EXPECT_EQ(parse(omni(with(text, "sliding_window", 4096))).attention_window, 0);
  EXPECT_FAILS(parse(omni(with(text, "use_sliding_window", true))), "only false");
  EXPECT_FAILS(parse(omni(without(text, "norm_topk_prob"))),
               "config.json: \"thinker_config\": \"text_config\": \"norm_topk_prob\" is missing");
  text["rope_scaling"].erase("mrope_section");
  EXPECT_FAILS(parse(omni(text)), "\"interleaved\" is not known");
  EXPECT_FAILS(parse(without(omni(text), "thinker_config")), "\"thinker_config\" is missing");
}

// What says which layers are dense: their number, each of them, or both alike.
TEST(Families, DenseLayersAreSaidInTwoWays) {
  const Json given = with(published("glm_4_7_flash"), "num_hidden_layers", 4);
  const Json listed = with(given, "mlp_layer_types", {"dense", "dense", "sparse", "sparse"});
  EXPECT_EQ(parse(with(given, "first_k_dense_replace", 3)).dense_first, 3);
  EXPECT_EQ(parse(with(listed, "first_k_dense_replace", 2)).dense_first, 2);
  EXPECT_EQ(parse(without(listed, "first_k_dense_replace")).dense_first, 2);
  EXPECT_EQ(parse(without(given, "first_k_dense_replace")).dense_first, 1);
  EXPECT_FAILS(parse(listed), "\"first_k_dense_replace\" is 1; \"mlp_layer_types\" says another");
}

// Keys without which a published config still means the same: no part of the mathematics, or the
// meaning of their absence is the family's own.
const std::map<std::string, std::set<std::string>>& keys_not_needed() {
  static const std::map<std::string, std::set<std::string>> of_family = {
      // Not known when the family was published, or visible in the tensors (widths of heads,
      // biases).
      {"llama", {"num_key_value_heads", "attention_bias", "mlp_bias", "head_dim"}},
      {"mistral", {"head_dim"}},
      {"qwen2", {"head_dim", "sliding_window"}},
      {"qwen3", {"sliding_window"}},
      {"mixtral", {"head_dim"}},
      {"qwen2_moe", {"head_dim", "sliding_window", "mlp_only_layers"}},
      {"qwen3_moe", {"attention_bias", "head_dim", "sliding_window", "mlp_only_layers"}},
      {"gpt2",
       {"attn_pdrop", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
        "summary_type", "summary_use_proj"}},
      {"olmoe", {"clip_qkv"}},
      {"deepseek", {"n_shared_experts"}},
      // The family's code decides where its config says nothing.
      {"deepseek_v2",
       {"moe_layer_freq", "scoring_func", "topk_method", "norm_topk_prob", "n_group", "topk_group",
        "aux_loss_alpha", "seq_aux", "ep_size"}},
      {"glm4_moe", {"norm_topk_prob", "partial_rotary_factor"}},
      {"glm4_moe_lite",
       {"first_k_dense_replace", "norm_topk_prob", "partial_rotary_factor", "topk_method"}},
      {"minimax_m2",
       {"attn_type_list", "qk_norm_type", "quantization_config", "rotary_dim", "scoring_func",
        "shared_intermediate_size", "use_qk_norm", "use_routing_bias"}},
      {"ernie4_5_moe",
       {"moe_capacity", "moe_gate", "moe_layer_interval", "moe_use_aux_free", "use_bias",
        "use_rmsnorm"}},
      {"qwen3_5_moe",
       {"image_token_id", "video_token_id", "vision_config", "vision_end_token_id",
        "vision_start_token_id"}},
      {"qwen2_5_vl",
       {"image_token_id", "sliding_window", "video_token_id", "vision_config",
        "vision_end_token_id", "vision_start_token_id", "vision_token_id"}},
      {"olmo2", {}},
      {"olmo3", {"layer_types"}},
      {"qwen3_next",
       {"full_attention_interval", "mlp_only_layers", "partial_rotary_factor",
        "use_sliding_window"}},
      {"gemma3_text",
       {"attn_logit_softcapping", "cache_implementation", "final_logit_softcapping",
        "rope_local_base_freq", "sliding_window_pattern"}},
      {"gemma3",
       {"boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image",
        "vision_config"}},
      {"smollm3",
       {"num_key_value_heads", "attention_bias", "mlp_bias", "layer_types",
        "no_rope_layer_interval", "no_rope_layers", "sliding_window"}},
      {"granitemoe", {}},
      {"phimoe",
       {"hidden_dropout", "input_jitter_noise", "original_max_position_embeddings",
        "router_jitter_noise"}},
      {"gpt_oss",
       {"experts_per_token", "hidden_act", "initial_context_length", "layer_types",
        "quantization_config", "swiglu_limit"}},
      {"deepseek_v3",
       {"moe_layer_freq", "scoring_func", "topk_method", "norm_topk_prob", "aux_loss_alpha",
        "seq_aux", "ep_size", "quantization_config"}},
  };
  return of_family;
}

TEST(Families, EveryKeyThatDecidesIsNeeded) {
  const std::set<std::string> never = {"architectures",
                                       "attention_dropout",
                                       "auto_map",
                                       "bos_token_id",
                                       "dtype",
                                       "eos_token_id",
                                       "initializer_range",
                                       "is_llama_config",
                                       "mtp_transformer_layers",
                                       "n_ctx",
                                       "num_mtp_modules",
                                       "num_nextn_predict_layers",
                                       "output_router_logits",
                                       "pad_token_id",
                                       "pretraining_tp",
                                       "rope_interleaved",
                                       "task_specific_params",
                                       "torch_dtype",
                                       "transformers.js_config",
                                       "use_cache",
                                       "use_mrope",
                                       "use_mtp",
                                       "max_window_layers"};
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MOE_TEST_DATA) + "/../fuzz/seeds/config")) {
    if (!entry.path().filename().string().starts_with("published_")) continue;
    const Json full = read_json(entry.path());
    const std::string type = full["model_type"];
    SCOPED_TRACE(entry.path().filename().string());
    EXPECT_NO_THROW(parse(full));
    for (const auto& item : full.items()) {
      const std::string& key = item.key();
      const bool early =
          type == "llama" && !full.contains("rope_theta") && key == "transformers_version";
      const bool free = (never.contains(key) && !(type == "olmoe" && key == "initializer_range")) ||
                        (key == "transformers_version" && !early) ||
                        (key == "rope_scaling" && item.value().is_null()) ||
                        (keys_not_needed().at(type).contains(key));
      if (free) EXPECT_NO_THROW(parse(without(full, key))) << key;
      else if (key == "rope_scaling")
        EXPECT_EQ(parse(without(full, key)).rope_scaling.kind,
                  RopeScaling::Kind::none);  // what a scaling is, it says whole
      else
        EXPECT_FAILS(parse(without(full, key)),
                     early ? "\"rope_theta\" is missing" : fmt::format("\"{}\" is missing", key));
    }
  }
}

TEST(Families, RopeScalings) {
  const Json base = published("tinyllama_1_1b");
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 512}};
  const Json yarn = {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 512}};
  EXPECT_EQ(
      parse(with(base, "rope_scaling", {{"type", "linear"}, {"factor", 2.5}})).rope_scaling.factor,
      2.5f);
  EXPECT_EQ(parse(with(base, "rope_scaling", llama3)).rope_scaling.original_context, 512);
  const RopeScaling y = parse(with(base, "rope_scaling", yarn)).rope_scaling;
  EXPECT_FLOAT_EQ(y.attention_factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  EXPECT_EQ(y.beta_fast, 32);
  EXPECT_TRUE(y.truncate);
  EXPECT_EQ(parse(with(base, "rope_scaling", with(yarn, "attention_factor", 1.5)))
                .rope_scaling.attention_factor,
            1.5f);
  const Json scaled = with(with(yarn, "mscale", 0.707), "mscale_all_dim", 1.0);
  EXPECT_FLOAT_EQ(
      parse(with(base, "rope_scaling", scaled)).rope_scaling.attention_factor,
      static_cast<float>((0.1 * 0.707 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1)));
  // The same in the new form.
  Json modern = without(base, "rope_theta");
  modern["rope_parameters"] = llama3;
  modern["rope_parameters"]["rope_theta"] = 7000;
  EXPECT_EQ(parse(modern).rope_theta, 7000);
  EXPECT_EQ(parse(modern).rope_scaling.kind, RopeScaling::Kind::llama3);
  for (const Json& scaling : {llama3, yarn})
    for (const auto& item : scaling.items())
      if (item.key() != "type" && item.key() != "rope_type")
        EXPECT_FAILS(parse(with(base, "rope_scaling", without(scaling, item.key()))),
                     fmt::format("\"{}\" is missing", item.key()));
  for (const char* kind : {"ntk", "su"})
    EXPECT_FAILS(parse(with(base, "rope_scaling", {{"type", kind}, {"factor", 2}})),
                 fmt::format("\"type\" is \"{}\"; rotary frequencies are read as one of default, "
                             "linear, llama3, yarn, proportional, longrope, dynamic",
                             kind));
  const Json dynamic = {{"type", "dynamic"}, {"factor", 2.5}};
  const ModelConfig ends = parse(with(base, "rope_scaling", dynamic));
  EXPECT_EQ(ends.rope_scaling.kind, RopeScaling::Kind::dynamic);
  EXPECT_EQ(ends.rope_scaling.factor, 2.5f);
  EXPECT_TRUE(ends.ends_at_context());
  EXPECT_FALSE(parse(base).ends_at_context());
  EXPECT_FAILS(parse(with(base, "rope_scaling", without(dynamic, "factor"))),
               "\"factor\" is missing");
  EXPECT_FAILS(parse(with(base, "rope_scaling", with(dynamic, "alpha", 2))),
               "\"alpha\" is not known");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "but beyond its context its rotary frequencies are others",
                      gguf_form_of(ends).why_own);
  EXPECT_FAILS(parse(with(base, "rope_scaling", with(llama3, "beta_fast", 3))),
               "\"beta_fast\" is not known");
  EXPECT_FAILS(
      parse(with(base, "rope_scaling", with(with(yarn, "rope_type", "linear"), "factor", 2))),
      "make them equal");
  EXPECT_FAILS(parse(with(modern, "rope_scaling", yarn)), "but \"rope_parameters\" is");
  for (const Json& scaling : {Json{{"type", "linear"}, {"factor", 2.5}}, llama3, scaled, dynamic}) {
    const ModelConfig c = parse(with(base, "rope_scaling", scaling));
    const std::string text = config_to_json(c);
    EXPECT_EQ(config_to_json(parse_config(text, "again")), text);
    EXPECT_EQ(parse_config(text, "again").rope_scaling.attention_factor,
              c.rope_scaling.attention_factor);
  }
}

// qwen: the layers from max_window_layers on, as transformers' layer_types lists them.
// The factors of this config are not the published ones.
TEST(Families, PhiMoe) {
  const Json given = published("phi_3_5_moe");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.routing.recipe, "sparsemixer");
  EXPECT_EQ(c.routing.experts, 16);
  EXPECT_EQ(c.expert_width, 6400);
  EXPECT_TRUE(c.norm == NormKind::layer && c.norm_bias && c.head_bias && c.attention_out_bias);
  EXPECT_EQ(c.rope_scaling.original_context, 4096);
  EXPECT_EQ(c.attention_window, 131072);
  EXPECT_FAILS(parse(with(given, "router_jitter_noise", 0.1)), "within 0.01");
  EXPECT_FAILS(parse(with(given, "hidden_dropout", 0.1)), "dropout");
  EXPECT_FAILS(parse(with(given, "original_max_position_embeddings", 8192)), "make them equal");
  EXPECT_FAILS(parse(without(given, "lm_head_bias")), "\"lm_head_bias\" is missing");

  const Json longrope = given.at("rope_scaling");
  const auto scaled = [&](const Json& scaling) { parse(with(given, "rope_scaling", scaling)); };
  EXPECT_FLOAT_EQ(c.rope_scaling.long_attention_factor, 1.2431631f);
  EXPECT_EQ(c.rope_scaling.long_factors.size(), 64u);
  for (const char* key : {"short_factor", "long_factor", "original_max_position_embeddings",
                          "short_mscale", "long_mscale"})
    EXPECT_FAILS(scaled(without(longrope, key)), fmt::format("\"{}\" is missing", key));
  Json wrong = longrope;
  wrong["long_factor"][3] = 0;
  EXPECT_FAILS(scaled(wrong), "has a factor of 0");
  wrong["long_factor"] = std::vector<double>(63, 1);
  EXPECT_FAILS(scaled(wrong), "needs as many");
  wrong["short_factor"] = wrong["long_factor"];
  EXPECT_FAILS(scaled(wrong), "64 pairs of a head turn");
  EXPECT_FAILS(parse(with(published("llama_2_7b"), "rope_scaling", longrope)),
               "long texts turn by other frequencies");
}

TEST(Families, AWindowMayBeginAtALayer) {
  Json json =
      with(with(published("qwen2_7b"), "use_sliding_window", true), "max_window_layers", 21);
  std::vector<std::string> types(28, "full_attention");
  std::fill(types.begin() + 21, types.end(), "sliding_attention");
  const ModelConfig c = parse(json), listed = parse(with(json, "layer_types", types));
  for (const ModelConfig& read : {c, listed, parse_config(config_to_json(c), "again")}) {
    EXPECT_EQ(read.attention(20).window, 0);
    EXPECT_EQ(read.attention(21).window, 131072);
    EXPECT_EQ(read.attention(27).window, 131072);
  }
  types[21] = "full_attention";
  EXPECT_FAILS(parse(with(json, "layer_types", types)), "\"full_attention\" at layer 21");
}

TEST(Families, WhatIsNotSupportedIsRefusedByName) {
  const auto refused = [](const char* name, const char* key, const Json& value,
                          const std::string& why) {
    EXPECT_FAILS(parse(with(published(name), key, value)), fmt::format("\"{}\" is ", key));
    EXPECT_FAILS(parse(with(published(name), key, value)), why);
  };
  refused("smollm2_135m", "rope_interleaved", true, "neighbours");
  refused("smollm2_135m", "hidden_act", "quick_gelu", "quick_gelu");
  refused("qwen2_7b", "use_mrope", true, "several axes");
  refused("qwen2_7b", "num_attention_heads", 27, "\"head_dim\" is needed");
  EXPECT_FAILS(parse(with(published("qwen2_7b"), "layer_types", Json::array({"full_attention"}))),
               "\"layer_types\" lists 1 layers");
  // no layer is beyond max_window_layers
  EXPECT_NO_THROW(parse(with(published("qwen2_7b"), "use_sliding_window", true)));
  std::vector<std::string> types(28, "full_attention");
  types[9] = "sliding_attention";
  EXPECT_FAILS(parse(with(published("qwen2_7b"), "layer_types", types)),
               "\"layer_types\" has \"sliding_attention\" at layer 9");
  refused("qwen3_30b_a3b", "use_sliding_window", true, "only false");
  refused("mixtral_8x7b", "router_jitter_noise", 0.1, "only 0");
  refused("gpt2", "scale_attn_weights", false, "not supported");
  refused("gpt2", "scale_attn_by_inverse_layer_idx", true, "not supported");
  refused("gpt2", "add_cross_attention", true, "not supported");
  refused("gpt2", "embd_pdrop", 0.3, "one dropout");
  refused("deepseek_moe_16b", "scoring_func", "sigmoid", "only \"softmax\"");
  refused("deepseek_moe_16b", "routed_scaling_factor", 16, "only 1");
  refused("deepseek_moe_16b", "topk_method", "group_limited_greedy", "only \"greedy\"");
  refused("deepseek_moe_16b", "kv_lora_rank", 512, "latent attention");
  refused("minimax_m2_7", "attn_type_list", {1, 0, 1}, "only 1 is of this family");
  refused("minimax_m2_7", "use_qk_norm", false, "only true");
  refused("minimax_m2_7", "qk_norm_type", "per_head", "only \"per_layer\"");
  refused("minimax_m2_7", "shared_intermediate_size", 1536, "only 0");
  refused("minimax_m2_7", "sliding_window", 4096, "only null");
  refused("minimax_m2_7", "layernorm_mlp_beta", 2, "only 1");
  refused("glm_4_7_flash", "partial_rotary_factor", 0.5, "only 1");
  refused("ernie_4_5_21b_a3b", "moe_gate", "switch", "only \"topk\"");
  EXPECT_FAILS(parse(with(published("qwen3_30b_a3b"), "decoder_sparse_step", 49)),
               "no layer routes");
  EXPECT_FAILS(parse(with(published("llama_3_2_1b"), "quantization_config", Json::object())),
               "\"quantization_config\": \"quant_method\" is missing");
  const Json mxfp4 = {{"quant_method", "mxfp4"}};
  EXPECT_FAILS(read_config(with(published("llama_3_2_1b"), "quantization_config", mxfp4).dump(),
                           "config.json"),
               "\"quantization_config\" says MXFP4, in which no \"llama\" is known");
  EXPECT_EQ(parse(with(published("qwen3_30b_a3b"), "norm_topk_prob", false)).routing.recipe,
            "qwen2-moe");
  const ModelConfig sparse = parse(
      with(with(published("qwen3_30b_a3b"), "decoder_sparse_step", 2), "mlp_only_layers", {1, 5}));
  EXPECT_EQ(sparse.moe_layer_count(), 22);
  EXPECT_TRUE(sparse.is_moe(3) && !sparse.is_moe(5) && !sparse.is_moe(2));
  // As transformers 5 writes it.
  Json renamed = with(without(published("qwen3_30b_a3b"), "num_experts"), "num_local_experts", 128);
  EXPECT_EQ(parse(renamed).routing.experts, 128);
}

}  // namespace
}  // namespace moe::test::families_test
