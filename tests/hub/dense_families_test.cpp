// Families without experts, which are carved and upcycled: each by the sizes of a published model
// in the words of its config, read as so many numbers as that has, and what its code could do that
// the engine does not refused by name. And the texts of models of pictures.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "core/rng.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/hub.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::dense_families_test {
namespace {

// What nearly all of them say.
Json sizes(const char* type, int64_t vocab, int64_t width, int64_t layers, int64_t heads,
           int64_t kv_heads, int64_t ffn) {
  return {{"model_type", type},
          {"architectures", {"AnyForCausalLM"}},
          {"vocab_size", vocab},
          {"hidden_size", width},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"intermediate_size", ffn},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"max_position_embeddings", 4096},
          {"tie_word_embeddings", false},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"use_cache", true}};
}

ModelConfig expect_numbers(const Json& json, int64_t numbers) {
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.model_type, json["model_type"]);
  EXPECT_EQ(count_params(c).total(), numbers) << c.model_type;
  const Json written = parse_json(config_to_json(c), "x");
  EXPECT_EQ(written["model_type"], json["model_type"]);
  EXPECT_EQ(config_to_json(parse(written)), config_to_json(c));
  return c;
}

Json phi3_mini() {
  Json json = sizes("phi3", 32064, 3072, 32, 32, 32, 8192);
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) json[key] = 0.0;
  json["original_max_position_embeddings"] = 4096;
  json["sliding_window"] = 2047;
  json["rope_scaling"] = nullptr;
  return json;
}

TEST(DenseFamilies, Phi3) {
  const ModelConfig c = expect_numbers(phi3_mini(), 3821079552);
  EXPECT_EQ(c.attention_window, 2047);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::none);
  expect_needed(phi3_mini(), {"sliding_window", "rope_theta", "tie_word_embeddings"});
  // Of Phi-4-mini, whose heads turn in part, by frequencies of two lengths.
  Json mini = sizes("phi3", 200064, 3072, 32, 24, 8, 8192);
  mini["tie_word_embeddings"] = true;
  mini["sliding_window"] = 262144;
  mini["max_position_embeddings"] = 131072;
  mini["original_max_position_embeddings"] = 4096;
  mini["partial_rotary_factor"] = 0.75;
  mini["rope_scaling"] = {{"type", "longrope"},
                          {"short_factor", std::vector<double>(48, 1.0)},
                          {"long_factor", std::vector<double>(48, 2.5)}};
  // of the code that came with its weights
  for (const char* key : {"attention_bias", "mlp_bias", "lm_head_bias"}) mini[key] = false;
  mini["full_attn_mod"] = mini["interpolate_factor"] = 1;
  const ModelConfig m = expect_numbers(mini, 3836021760);
  expect_refused(mini, {{"attention_bias", true}, {"lm_head_bias", true}, {"full_attn_mod", 2}});
  EXPECT_EQ(m.rotary_width, 96);
  EXPECT_EQ(m.rope_scaling.original_context, 4096);
  const float factor = std::sqrt(1 + std::log(32.0f) / std::log(4096.0f));
  EXPECT_FLOAT_EQ(m.rope_scaling.attention_factor, factor);
  EXPECT_EQ(m.rope_scaling.long_attention_factor, m.rope_scaling.attention_factor);
  EXPECT_EQ(m.rope_scaling.long_factors, std::vector<float>(48, 2.5f));
  // Said otherwise: in the scaling itself, and as transformers 5 has it.
  const auto scaled = [&](const Json& more) {
    Json json = mini;
    json["rope_scaling"].update(more);
    return parse(json).rope_scaling.attention_factor;
  };
  EXPECT_EQ(scaled({{"attention_factor", 1.5}}), 1.5f);
  EXPECT_EQ(scaled({{"factor", 1.0}}), 1);
  EXPECT_EQ(scaled({{"original_max_position_embeddings", 4096}}), m.rope_scaling.attention_factor);
  Json newer = without(without(mini, "rope_scaling"), "rope_theta");
  newer["rope_parameters"] = mini["rope_scaling"];
  newer["rope_parameters"]["rope_theta"] = 10000.0;
  EXPECT_EQ(config_to_json(parse(newer)), config_to_json(m));
  EXPECT_FAILS(scaled({{"original_max_position_embeddings", 2048}}),
               "\"original_max_position_embeddings\" is 2048, but 4096 stands beside it");
  EXPECT_FAILS(parse(without(mini, "original_max_position_embeddings")),
               "\"original_max_position_embeddings\" is missing");
  EXPECT_FAILS(scaled({{"short_mscale", 1.1}}), "short_mscale");
  EXPECT_FAILS(scaled({{"long_factor", {1.0}}}), "factors");
  // Another family's scaling of long texts has a factor for each length.
  ModelConfig two = m;
  two.rope_scaling.long_attention_factor += 0.5f;
  EXPECT_EQ(architecture_of(two).model_type, "moe_cpp");
  ModelConfig linear = m;
  linear.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
  EXPECT_EQ(architecture_of(linear).model_type, "moe_cpp");
}

TEST(DenseFamilies, Gemma) {
  Json json = sizes("gemma", 256000, 2048, 18, 8, 1, 16384);
  json["head_dim"] = 256;
  json["attention_bias"] = false;
  json["hidden_act"] = "gelu";
  json["hidden_activation"] = nullptr;
  json.erase("tie_word_embeddings");
  const ModelConfig c = expect_numbers(json, 2506172416);
  EXPECT_TRUE(c.tied && c.norm_offset);
  EXPECT_EQ(c.act, ops::Act::gelu_tanh);
  EXPECT_FLOAT_EQ(c.multipliers.embedding, std::sqrt(2048.0f));
  EXPECT_EQ(c.multipliers.attention, 0);
  for (const char* key : {"hidden_act", "hidden_activation"})
    EXPECT_EQ(config_to_json(parse(with(json, key, "gelu_pytorch_tanh"))), config_to_json(c));
  expect_refused(json, {{"hidden_act", "silu"},
                        {"hidden_activation", "gelu"},
                        {"use_bidirectional_attention", true}});
  ModelConfig other = c;
  other.multipliers.embedding = 1;
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
}

// The sizes of Gemma 2 2B.
TEST(DenseFamilies, Gemma2) {
  Json json = sizes("gemma2", 256000, 2304, 26, 8, 4, 9216);
  json["head_dim"] = json["query_pre_attn_scalar"] = 256;
  json["attention_bias"] = false;
  json["hidden_act"] = json["hidden_activation"] = "gelu_pytorch_tanh";
  json["attn_logit_softcapping"] = 50.0;
  json["final_logit_softcapping"] = 30.0;
  json["sliding_window"] = json["sliding_window_size"] = 4096;
  json["cache_implementation"] = "hybrid";
  json.erase("tie_word_embeddings");
  const ModelConfig c = expect_numbers(json, 2614341888);
  EXPECT_TRUE(c.tied && c.norm_offset && c.qk_norm == QkNorm::none);
  EXPECT_EQ(c.norm_placement, NormPlacement::both);
  EXPECT_EQ(c.act, ops::Act::gelu_tanh);
  EXPECT_EQ(c.score_cap, 50);
  EXPECT_EQ(c.logit_cap, 30);
  EXPECT_EQ(c.attention(0).score_cap, 50);
  EXPECT_EQ(c.attention(0).window, 4096);
  EXPECT_EQ(c.attention(1).window, 0);
  EXPECT_EQ(c.window_rope_theta, 0);
  EXPECT_EQ(c.multipliers.attention, 1.0f / 16);
  EXPECT_FLOAT_EQ(c.multipliers.embedding, std::sqrt(2304.0f));
  Json listed = json;
  for (int64_t i = 0; i < 26; ++i)
    listed["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  EXPECT_EQ(config_to_json(parse(listed)), config_to_json(c));
  const ModelConfig free = parse(with(json, "attn_logit_softcapping", nullptr));
  EXPECT_EQ(free.score_cap, 0);
  EXPECT_EQ(architecture_of(free).model_type, "gemma2");
  expect_needed(json, {"attn_logit_softcapping", "final_logit_softcapping", "head_dim",
                       "query_pre_attn_scalar", "sliding_window"});
  expect_refused(json, {{"use_bidirectional_attention", true}});
  EXPECT_FAILS(parse(with(json, "attn_logit_softcapping", -1)), "\"attn_logit_softcapping\" is -1");
  // No other family says a cap of scores, and latent attention has none.
  ModelConfig other = parse(phi3_mini());
  other.score_cap = 50;
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  other.latent = {.width = 8, .value_width = 96};
  other.kv_heads = other.heads;
  other.rotary_width = 32;
  EXPECT_FAILS(validate(other), "scores of latent attention have no cap");
}

TEST(DenseFamilies, Granite) {
  Json json = sizes("granite", 49159, 2048, 40, 32, 8, 8192);
  for (const auto& [key, x] : {std::pair{"embedding_multiplier", 12.0},
                               {"residual_multiplier", 0.22},
                               {"attention_multiplier", 0.015625},
                               {"logits_scaling", 8.0}})
    json[key] = x;
  json["attention_bias"] = json["mlp_bias"] = false;
  json["tie_word_embeddings"] = true;
  const ModelConfig c = expect_numbers(json, 2533539840);
  EXPECT_EQ(c.multipliers.residual, 0.22f);
  EXPECT_EQ(c.multipliers.logits, 8);
  EXPECT_TRUE(parse(with(json, "mlp_bias", true)).ffn_bias);
  expect_needed(json, {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                       "logits_scaling"});
  // The same with sinks and windows.
  Json swa = with(json, "model_type", "granite_swa");
  swa["sliding_window"] = 128;
  std::vector<double> bases(40, 10000.0);
  bases[4] = 0;
  swa["layer_rope_theta"] = bases;
  const ModelConfig s = expect_numbers(swa, 2533539840 + 40 * 32);
  EXPECT_TRUE(s.attention_sinks);
  EXPECT_FALSE(s.has_window(0) || s.has_window(4));
  EXPECT_TRUE(s.has_window(1) && s.has_window(39));
  EXPECT_EQ(s.nope_layers, std::vector<int64_t>{4});
}

// Sizes of a model of 14B.
TEST(DenseFamilies, HyperClovaX) {
  Json json = sizes("hyperclovax", 110592, 6144, 38, 48, 8, 14336);
  for (const auto& [key, x] : {std::pair{"embedding_multiplier", 10.0},
                               {"residual_multiplier", 1.0},
                               {"attention_multiplier", 0.0078125},
                               {"logits_scaling", 0.125}})
    json[key] = x;
  json["head_dim"] = 128;
  json["use_post_norm"] = true;
  const int64_t layer = 2 * 6144 * 6144 + 2 * 1024 * 6144 + 3 * int64_t{6144} * 14336,
                rest = 2 * int64_t{110592} * 6144 + 6144;
  const ModelConfig c = expect_numbers(json, rest + 38 * (layer + 4 * 6144));
  EXPECT_EQ(c.norm_placement, NormPlacement::both);
  EXPECT_EQ(c.multipliers.logits, 8);
  EXPECT_EQ(expect_numbers(with(json, "use_post_norm", false), rest + 38 * (layer + 2 * 6144))
                .norm_placement,
            NormPlacement::pre);
  expect_needed(json, {"use_post_norm", "logits_scaling", "attention_multiplier"});
}

TEST(DenseFamilies, Glm4) {
  Json json = sizes("glm4", 151552, 4096, 40, 32, 2, 13696);
  json["head_dim"] = 128;
  json["attention_bias"] = true;
  json["partial_rotary_factor"] = 0.5;
  const ModelConfig c = expect_numbers(json, 9400279040);
  EXPECT_EQ(c.norm_placement, NormPlacement::both);
  EXPECT_EQ(c.rotary_width, 64);
  EXPECT_TRUE(c.attention_bias && !c.attention_out_bias);
  EXPECT_EQ(config_to_json(parse(without(json, "partial_rotary_factor"))), config_to_json(c));
  expect_needed(json, {"head_dim", "attention_bias"});
  // The one before it has two norms fewer.
  const ModelConfig before =
      expect_numbers(with(json, "model_type", "glm"), 9400279040 - 2 * 40 * 4096);
  EXPECT_EQ(before.norm_placement, NormPlacement::pre);
}

TEST(DenseFamilies, SeedOss) {
  Json json = sizes("seed_oss", 155136, 5120, 64, 80, 8, 27648);
  json["head_dim"] = 128;
  json["attention_bias"] = true;
  json["attention_out_bias"] = json["mlp_bias"] = false;
  json["residual_dropout"] = json["attention_dropout"] = 0.1;
  json["rope_scaling"] = {{"rope_type", "default"}};
  const ModelConfig c = expect_numbers(json, 36151104512);
  EXPECT_TRUE(c.attention_bias && !c.attention_out_bias);
  EXPECT_EQ(c.dropout, 0);
  expect_refused(json, {{"attention_out_bias", true}, {"mlp_bias", true}});
}

TEST(DenseFamilies, Exaone4) {
  Json json = sizes("exaone4", 102400, 2048, 30, 32, 8, 4096);
  json["head_dim"] = 64;
  json["tie_word_embeddings"] = true;
  json["sliding_window"] = json["sliding_window_pattern"] = nullptr;
  json["layer_types"] = std::vector<std::string>(30, "full_attention");
  const ModelConfig c = expect_numbers(json, 1279391488);
  EXPECT_EQ(c.norm_placement, NormPlacement::output);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(c.attention_window, 0);
  EXPECT_TRUE(c.nope_layers.empty());  // all turn
  EXPECT_FAILS(parse(without(json, "sliding_window")), "\"sliding_window\" is missing");
  // With windows, layers without one do not turn.
  Json large = sizes("exaone4", 102400, 5120, 64, 40, 8, 27392);
  large["head_dim"] = 128;
  large["sliding_window"] = 4096;
  large["sliding_window_pattern"] = "LLLG";
  for (int i = 0; i < 64; ++i)
    large["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "sliding_attention");
  const ModelConfig l = expect_numbers(large, 32003216384);
  EXPECT_EQ(l.attention_window, 4096);
  EXPECT_EQ(l.window_layers.size(), 48u);
  EXPECT_EQ(l.nope_layers.size(), 16u);
  EXPECT_EQ(l.attention(3).rotary_width, 0);
  EXPECT_EQ(config_to_json(parse(with(without(large, "layer_types"), "sliding_window_pattern", 4))),
            config_to_json(l));
  large["layer_types"][0] = "full_attention";
  EXPECT_EQ(parse(large).nope_layers[0], 0);
  // A window that no layer has: then nothing turns, for which there are no words.
  EXPECT_FAILS(parse(with(json, "sliding_window", 4096)), "in some of its layers nothing turns");
}

TEST(DenseFamilies, Ernie45) {
  Json json = sizes("ernie4_5", 103424, 1024, 18, 16, 2, 3072);
  json["head_dim"] = 128;
  json["use_bias"] = false;
  json["tie_word_embeddings"] = true;
  expect_numbers(json, 360748032);
  EXPECT_TRUE(parse(without(json, "tie_word_embeddings")).tied);  // as transformers wrote it again
  expect_needed(json, {"head_dim"});
  expect_refused(json, {{"use_bias", true}});
}

TEST(DenseFamilies, HunYuan) {
  Json json = sizes("hunyuan_v1_dense", 120818, 2048, 32, 16, 4, 6144);
  json["head_dim"] = json["attention_head_dim"] = 128;
  json["tie_word_embeddings"] = json["use_qk_norm"] = true;
  json["attention_bias"] = json["use_cla"] = false;
  json["rope_scaling"] = {{"alpha", 1000.0}, {"beta_fast", 32}, {"beta_slow", 1},
                          {"factor", 1.0},   {"mscale", 1.0},   {"type", "dynamic"}};
  const ModelConfig c = expect_numbers(json, 1791080448);
  EXPECT_TRUE(c.qk_norm_turned);
  EXPECT_FLOAT_EQ(c.rope_theta, static_cast<float>(10000 * std::pow(1000.0, 128.0 / 126)));
  expect_refused(json, {{"use_qk_norm", false}, {"use_cla", true}, {"attention_head_dim", 64}});
}

Json lfm2() {
  Json json = sizes("lfm2", 65536, 2048, 16, 32, 8, 12288);
  for (const char* key : {"hidden_act", "rms_norm_eps", "tie_word_embeddings", "intermediate_size"})
    json.erase(key);
  json["norm_eps"] = json["block_norm_eps"] = 1e-5;
  json["block_ff_dim"] = 12288;
  json["block_auto_adjust_ff_dim"] = json["block_use_swiglu"] = json["use_pos_enc"] = true;
  json["block_multiple_of"] = 256;
  json["block_ffn_dim_multiplier"] = 1.0;
  json["block_dim"] = json["conv_dim"] = json["conv_dim_out"] = 2048;
  json["conv_L_cache"] = 3;
  json["conv_bias"] = false;
  json["num_heads"] = 32;
  json["theta"] = 1000000.0;
  json["full_attn_idxs"] = {2, 5, 8, 10, 12, 14};
  return json;
}

TEST(DenseFamilies, Lfm2) {
  const ModelConfig c = expect_numbers(lfm2(), 1170340608);
  EXPECT_EQ(c.dense_width, 8192);
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(c.conv_layers, (std::vector<int64_t>{0, 1, 3, 4, 6, 7, 9, 11, 13, 15}));
  const auto width = [](const char* key, const Json& value) {
    return parse(with(lfm2(), key, value)).dense_width;
  };
  EXPECT_EQ(width("block_auto_adjust_ff_dim", false), 12288);
  EXPECT_EQ(width("block_multiple_of", 5000), 10000);
  EXPECT_EQ(width("block_ffn_dim_multiplier", 0.5), 4096);
  EXPECT_EQ(width("block_ffn_dim_multiplier", nullptr), 8192);
  EXPECT_EQ(width("block_ff_dim", 100), 256);  // 66, in multiples of 256
  EXPECT_EQ(width("intermediate_size", 100), 8192) << "the older key goes before it";
  Json newer = without(lfm2(), "full_attn_idxs");
  for (int64_t i = 0; i < 16; ++i)
    newer["layer_types"].push_back(c.mixer(i) == Mixer::conv ? "conv" : "full_attention");
  EXPECT_EQ(config_to_json(parse(newer)), config_to_json(c));
  EXPECT_FAILS(parse(without(lfm2(), "full_attn_idxs")), "\"layer_types\" is missing");
  expect_refused(lfm2(), {{"block_use_swiglu", false}, {"use_pos_enc", false}, {"num_heads", 16}});
  // Saved and loaded it is itself.
  ModelConfig small = small_config();
  small.model_type = "lfm2";
  small.expert_width = small.dense_width;
  small.qk_norm = QkNorm::head;
  small.conv_layers = {0};
  small.conv_width = 3;
  small.tied = true;
  Model model(small);
  model.initialise(3);
  const TempFolder folder;
  save_model(folder.path(), model, *make_tokenizer("bytes"));
  EXPECT_EQ(read_json(folder / "config.json")["model_type"], "lfm2");
  const LoadedModel loaded = load_model(folder.path());
  for (size_t i = 0; i < model.params().size(); ++i)
    EXPECT_TRUE(same_bits(loaded.model->params()[i]->value, model.params()[i]->value))
        << model.params()[i]->name;
}

TEST(DenseFamilies, StableLm) {
  Json json = sizes("stablelm", 100352, 2048, 24, 32, 32, 5632);
  json.erase("rms_norm_eps");
  json["layer_norm_eps"] = 1e-5;
  json["use_qkv_bias"] = true;
  json["hidden_dropout"] = 0.0;
  json["partial_rotary_factor"] = 0.25;
  const ModelConfig c = expect_numbers(json, 1644515328);
  EXPECT_EQ(c.norm, NormKind::layer);
  EXPECT_TRUE(c.norm_bias && c.attention_bias && !c.attention_out_bias && c.gated);
  EXPECT_EQ(c.rotary_width, 16);
  EXPECT_EQ(config_to_json(parse(without(json, "partial_rotary_factor"))), config_to_json(c));
  EXPECT_FALSE(parse(without(json, "use_qkv_bias")).attention_bias);
  expect_needed(json, {"layer_norm_eps"});
  expect_refused(json, {{"qk_layernorm", true}, {"use_parallel_residual", true}});
  // Its code takes no other width of a head.
  EXPECT_FAILS(parse(with(json, "head_dim", 128)), "do not make up the width");
}

// The sizes of Command R7B.
Json cohere2() {
  Json json = sizes("cohere2", 256000, 4096, 32, 32, 8, 14336);
  for (const char* key : {"rms_norm_eps", "tie_word_embeddings"}) json.erase(key);
  json["layer_norm_eps"] = 1e-5;
  json["logit_scale"] = 0.25;
  json["attention_bias"] = json["use_parallel_embedding"] = false;
  json["sliding_window"] = 4096;
  json["sliding_window_pattern"] = json["layer_switch"] = 4;
  json["rotary_pct"] = 1.0;
  json["position_embedding_type"] = "rope_gptj";
  json["order_of_interleaved_layers"] = "local_attn_first";
  for (const char* key : {"use_embedding_sharing", "use_gated_activation", "use_parallel_block"})
    json[key] = true;
  return json;
}

TEST(DenseFamilies, Cohere) {
  const int64_t attention = 2 * 4096 * 4096 + 2 * 1024 * 4096, ffn = 3 * int64_t{4096} * 14336;
  const ModelConfig c =
      expect_numbers(cohere2(), int64_t{256000} * 4096 + 4096 + 32 * (attention + ffn + 4096));
  EXPECT_EQ(c.norm_placement, NormPlacement::beside);
  EXPECT_TRUE(c.norm == NormKind::layer && !c.norm_bias && c.tied);
  EXPECT_EQ(c.multipliers.logits, 4);
  EXPECT_EQ(c.window_layers.size(), 24u);
  EXPECT_EQ(c.attention(3).rotary_width, 0);
  EXPECT_EQ(c.attention(4).rotary_width, 128);
  expect_needed(cohere2(), {"layer_norm_eps", "logit_scale", "sliding_window", "attention_bias",
                            "sliding_window_pattern"});
  expect_refused(cohere2(), {{"use_parallel_block", false},
                             {"use_gated_activation", false},
                             {"rotary_pct", 0.5},
                             {"use_qk_norm", true}});
  // A factor that is no power of two stays what it is.
  const ModelConfig third = parse(with(cohere2(), "logit_scale", 0.3));
  EXPECT_EQ(parse(parse_json(config_to_json(third), "x")).multipliers.logits,
            third.multipliers.logits);
  // The first ones: all layers turn and see all.
  Json first = with(cohere2(), "model_type", "cohere");
  for (const char* key : {"sliding_window", "sliding_window_pattern"}) first.erase(key);
  first["model_max_length"] = 131072;
  first["use_qk_norm"] = false;
  const ModelConfig f = expect_numbers(first, count_params(c).total());
  EXPECT_TRUE(f.attention_window == 0 && f.nope_layers.empty());
  // With a norm of its own before the FFN it is another model.
  ModelConfig behind = f;
  behind.norm_placement = NormPlacement::pre;
  EXPECT_EQ(architecture_of(behind).model_type, "moe_cpp");
}

// The sizes of Ministral 3 8B, the rotary parameters in transformers 5's words.
Json ministral3() {
  Json json = sizes("ministral3", 131072, 4096, 34, 32, 8, 14336);
  json["head_dim"] = 128;
  json["max_position_embeddings"] = 262144;
  json["sliding_window"] = nullptr;
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "yarn"},
                             {"type", "yarn"},
                             {"rope_theta", 1000000.0},
                             {"factor", 16.0},
                             {"original_max_position_embeddings", 16384},
                             {"max_position_embeddings", 262144},
                             {"beta_fast", 32.0},
                             {"beta_slow", 1.0},
                             {"mscale", 1.0},
                             {"mscale_all_dim", 1.0},
                             {"llama_4_scaling_beta", 0.1}};
  return json;
}

TEST(DenseFamilies, Ministral3) {
  const int64_t attention = 2 * 4096 * 4096 + 2 * 1024 * 4096, ffn = 3 * int64_t{4096} * 14336;
  const ModelConfig c = expect_numbers(
      ministral3(), 2 * int64_t{131072} * 4096 + 4096 + 34 * (attention + ffn + 2 * 4096));
  EXPECT_EQ(c.query_growth.beta, 0.1f);
  EXPECT_EQ(c.query_growth.context, 16384);
  EXPECT_EQ(c.rope_scaling.attention_factor, 1);
  // transformers would take it in place of what says how queries grow.
  EXPECT_FALSE(parse_json(config_to_json(c), "x").contains("rope_scaling"));
  for (const char* key : {"llama_4_scaling_beta", "original_max_position_embeddings"}) {
    Json json = ministral3();
    json["rope_parameters"].erase(key);
    EXPECT_FAILS(parse(json), key);
  }
  // Not scaled, and of other contexts than frequencies are scaled from.
  Json plain = ministral3();
  plain["rope_parameters"] = {{"rope_type", "default"},
                              {"rope_theta", 10000.0},
                              {"original_max_position_embeddings", 64},
                              {"llama_4_scaling_beta", 0.25}};
  EXPECT_EQ(expect_numbers(plain, count_params(c).total()).query_growth.context, 64);
  ModelConfig other = c;
  other.query_growth.context = 64;
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  const ModelConfig read = parse(parse_json(config_to_json(other), "x"));
  EXPECT_TRUE(read.query_growth.context == 64 && read.query_growth.beta == 0.1f);
  other = c;
  other.query_growth = {};
  EXPECT_EQ(architecture_of(other).model_type, "llama");
  // A family without the key does not take it.
  EXPECT_FAILS(parse(with(ministral3(), "model_type", "mistral")), "llama_4_scaling_beta");
}

TEST(DenseFamilies, Helium) {
  Json json = sizes("helium", 64000, 2560, 24, 20, 20, 7040);
  json["head_dim"] = 128;
  json["rms_norm_eps"] = 1e-8;
  json["attention_bias"] = json["mlp_bias"] = false;
  const ModelConfig c =
      expect_numbers(json, 2 * int64_t{64000} * 2560 + 2560 +
                               24 * (4 * 2560 * 2560 + 3 * int64_t{2560} * 7040 + 2 * 2560));
  EXPECT_EQ(c.norm_eps, 1e-8f);
  EXPECT_TRUE(parse(with(json, "attention_bias", true)).attention_bias);
  EXPECT_FALSE(parse(with(json, "attention_bias", true)).attention_out_bias);
  expect_refused(json, {{"mlp_bias", true}});
  EXPECT_FAILS(parse(with(json, "head_dim", 64)), "do not make up the width");
}

TEST(DenseFamilies, Starcoder2) {
  Json json = sizes("starcoder2", 49152, 3072, 30, 24, 2, 12288);
  for (const char* key : {"rms_norm_eps", "tie_word_embeddings"}) json.erase(key);
  json["norm_epsilon"] = 1e-5;
  json["use_bias"] = true;
  json["hidden_act"] = "gelu_pytorch_tanh";
  json["sliding_window"] = 4096;
  json["residual_dropout"] = json["embedding_dropout"] = 0.1;
  // of the trainer that it was made with
  json["mlp_type"] = "default";
  json["norm_type"] = "layer_norm";
  json["layer_norm_epsilon"] = json["rms_norm_eps"] = 1e-5;
  for (const char* key :
       {"scale_attn_weights", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"})
    json[key] = true;
  const ModelConfig c = expect_numbers(json, 3030371328);
  expect_refused(json, {{"mlp_type", "gated"}, {"norm_type", "rms_norm"}});
  EXPECT_TRUE(c.tied && !c.gated && c.ffn_bias && c.attention_bias && c.attention_out_bias);
  EXPECT_EQ(c.act, ops::Act::gelu_tanh);
  EXPECT_EQ(c.attention_window, 4096);
  EXPECT_FALSE(parse(with(json, "use_bias", false)).ffn_bias);
  expect_needed(json, {"norm_epsilon", "use_bias", "sliding_window"});
  ModelConfig half = c;
  half.ffn_bias = false;
  EXPECT_EQ(architecture_of(half).model_type, "moe_cpp");
}

TEST(DenseFamilies, Arcee) {
  Json json = sizes("arcee", 128004, 2560, 36, 20, 4, 18432);
  json["hidden_act"] = "relu2";
  json["head_dim"] = 128;
  json["attention_bias"] = json["mlp_bias"] = false;
  // of a layer q and o, k and v, up and down, and two norms; those of the model around them
  const int64_t layer = 2 * 2560 * 2560 + 2 * 512 * 2560 + 2 * 18432 * 2560 + 2 * 2560;
  const ModelConfig c = expect_numbers(json, 36 * layer + 2 * int64_t{128004} * 2560 + 2560);
  EXPECT_EQ(c.act, ops::Act::relu2);
  EXPECT_FALSE(c.gated || c.ffn_bias || c.attention_bias);
  expect_refused(json, {{"hidden_act", "silu"}});
  ModelConfig other = c;
  other.act = ops::Act::relu;
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
}

// The sizes of Minitron-4B (arXiv 2407.14679).
TEST(DenseFamilies, Nemotron) {
  Json json = sizes("nemotron", 256000, 3072, 32, 24, 8, 9216);
  json.erase("rms_norm_eps");
  json["norm_eps"] = 1e-5;
  json["hidden_act"] = "relu2";
  json["partial_rotary_factor"] = 0.5;
  json["kv_channels"] = 128;
  // of a layer q and o, k and v, up and down, and two norms with biases; around them the same
  const int64_t layer = 2 * 3072 * 3072 + 2 * 1024 * 3072 + 2 * 9216 * 3072 + 4 * 3072;
  const ModelConfig c = expect_numbers(json, 32 * layer + 2 * int64_t{256000} * 3072 + 2 * 3072);
  EXPECT_EQ(c.act, ops::Act::relu2);
  EXPECT_EQ(c.norm, NormKind::layer);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_TRUE(c.norm_bias && c.norm_offset);
  EXPECT_FALSE(c.gated || c.ffn_bias || c.attention_bias || c.attention_out_bias);
  EXPECT_EQ(c.head_width, 128);
  EXPECT_EQ(c.rotary_width, 64);
  // As transformers 5 says it, and where nothing says how much of a head turns.
  Json newer = without(without(json, "partial_rotary_factor"), "rope_theta");
  newer["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(config_to_json(parse(newer)), config_to_json(c));
  EXPECT_EQ(config_to_json(parse(without(json, "partial_rotary_factor"))), config_to_json(c));
  EXPECT_EQ(parse(with(json, "partial_rotary_factor", 0.25)).rotary_width, 32);
  const ModelConfig biases = parse(with(with(json, "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(biases.attention_bias && biases.attention_out_bias && biases.ffn_bias);
  expect_needed(json, {"norm_eps", "hidden_act", "tie_word_embeddings"});
  expect_refused(json, {{"hidden_act", "silu"}, {"kv_channels", 64}});
  // Where norms multiply by their weight alone no family says it.
  ModelConfig whole = c;
  whole.norm_offset = false;
  EXPECT_EQ(architecture_of(whole).model_type, "moe_cpp");
}

// The sizes of nanochat-d20 (github karpathy/nanochat, scripts/base_train.py).
TEST(DenseFamilies, NanoChat) {
  Json json = sizes("nanochat", 65536, 1280, 20, 10, 10, 5120);
  json["hidden_act"] = "relu2";
  json["attention_bias"] = false;
  json["final_logit_softcapping"] = 15.0;
  const int64_t layer = 4 * 1280 * 1280 + 2 * 5120 * 1280;  // no norm has a weight
  const ModelConfig c = expect_numbers(json, 20 * layer + 2 * int64_t{65536} * 1280);
  EXPECT_EQ(c.act, ops::Act::relu2);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(c.logit_cap, 15);
  EXPECT_TRUE(c.embedding_norm && c.qk_norm_turned);
  EXPECT_FALSE(c.norm_weights || c.gated || c.attention_bias);
  EXPECT_EQ(parse(with(json, "final_logit_softcapping", nullptr)).logit_cap, 0);
  const ModelConfig biases = parse(with(json, "attention_bias", true));
  EXPECT_TRUE(biases.attention_bias && biases.attention_out_bias && !biases.ffn_bias);
  expect_needed(json, {"final_logit_softcapping", "rms_norm_eps", "tie_word_embeddings"});
  expect_refused(json, {{"hidden_act", "silu"}});
  EXPECT_FAILS(parse(with(json, "final_logit_softcapping", 0)), "\"final_logit_softcapping\" is 0");
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "but its norms have no weights",
                      gguf_form_of(c).why_own);
  for (bool ModelConfig::*part : {&ModelConfig::norm_weights, &ModelConfig::embedding_norm}) {
    ModelConfig other = c;
    other.*part = !(other.*part);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  }
}

// InternLM3 8B's config as it was published.
TEST(DenseFamilies, InternLm3) {
  Json json = sizes("internlm3", 128512, 4096, 48, 32, 2, 10240);
  json.update({{"bias", false},
               {"head_dim", 128},
               {"max_position_embeddings", 32768},
               {"qkv_bias", false},
               {"rope_scaling", {{"factor", 6.0}, {"rope_type", "dynamic"}}},
               {"rope_theta", 50000000}});
  // of a layer q and o, k and v, an FFN with a gate, and two norms
  const int64_t layer = 2 * 4096 * 4096 + 2 * 256 * 4096 + 3 * 10240 * 4096 + 2 * 4096;
  const ModelConfig c = expect_numbers(json, 48 * layer + 2 * int64_t{128512} * 4096 + 4096);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::dynamic);
  EXPECT_TRUE(c.ends_at_context() && c.gated);
  EXPECT_FALSE(c.attention_bias || c.attention_out_bias || c.ffn_bias);
  const ModelConfig first = parse(with(json, "qkv_bias", true)),
                    others = parse(with(json, "bias", true));
  EXPECT_TRUE(first.attention_bias && !first.attention_out_bias && !first.ffn_bias);
  EXPECT_TRUE(!others.attention_bias && others.attention_out_bias && others.ffn_bias);
  expect_needed(json, {"bias", "qkv_bias", "rms_norm_eps"});
  Json renamed = without(without(json, "bias"), "qkv_bias");  // as transformers 5 saves it
  renamed.update({{"attention_bias", true}, {"mlp_bias", true}});
  const ModelConfig both = parse(renamed);
  EXPECT_TRUE(both.attention_bias && both.attention_out_bias && both.ffn_bias);
  ModelConfig mixed = others;
  mixed.ffn_bias = false;
  EXPECT_EQ(architecture_of(mixed).model_type, "moe_cpp");
}

// Apertus 8B's config as it was published.
TEST(DenseFamilies, Apertus) {
  Json json = sizes("apertus", 131072, 4096, 32, 32, 8, 21504);
  json.update({{"hidden_act", "xielu"},
               {"attention_bias", false},
               {"hidden_dropout", 0.0},
               {"max_position_embeddings", 65536},
               {"mlp_bias", false},
               {"post_norm", false},
               {"qk_norm", true},
               {"rope_theta", 12000000}});
  json["rope_scaling"] = {{"factor", 8.0},          {"high_freq_factor", 4.0},
                          {"low_freq_factor", 1.0}, {"original_max_position_embeddings", 8192},
                          {"rope_type", "llama3"},  {"type", "llama3"}};
  // of a layer q and o, k and v, up and down, two norms, those of queries and keys, and of the
  // activation two numbers that are trained
  const int64_t layer =
      2 * 4096 * 4096 + 2 * 1024 * 4096 + 2 * 21504 * 4096 + 2 * 4096 + 2 * 128 + 2;
  const ModelConfig c = expect_numbers(json, 32 * layer + 2 * int64_t{131072} * 4096 + 4096);
  EXPECT_EQ(count_params(c).buffers, 32 * 2);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_TRUE(c.xielu);
  EXPECT_FALSE(c.gated || c.attention_bias || c.ffn_bias);
  // As transformers 5 says it.
  Json newer = without(without(json, "rope_scaling"), "rope_theta");
  newer["rope_parameters"] = without(json["rope_scaling"], "type");
  newer["rope_parameters"]["rope_theta"] = 12000000.0;
  for (const char* key : {"mlp_bias", "post_norm", "qk_norm", "hidden_dropout"}) newer.erase(key);
  EXPECT_EQ(config_to_json(parse(newer)), config_to_json(c));
  const ModelConfig biases = parse(with(json, "attention_bias", true));
  EXPECT_TRUE(biases.attention_bias && biases.attention_out_bias && !biases.ffn_bias);
  expect_needed(json, {"hidden_act", "attention_bias", "tie_word_embeddings"});
  expect_refused(
      json, {{"hidden_act", "silu"}, {"qk_norm", false}, {"post_norm", true}, {"mlp_bias", true}});
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "but factors of its activation are learned",
                      gguf_form_of(c).why_own);
  ModelConfig plain = c;
  plain.xielu = false;
  EXPECT_EQ(architecture_of(plain).model_type, "moe_cpp");
  // Its FFNs cannot be cut into experts.
  ModelConfig sparse = c;
  sparse.routing = default_options(find_recipe("mixtral"), 4, 2, c.layers);
  EXPECT_FAILS(validate(sparse), "a model with it cannot have experts");
}

TEST(DenseFamilies, Youtu) {
  Json json = sizes("youtu", 128256, 2048, 32, 16, 16, 6144);
  for (const auto& [key, x] : {std::pair{"kv_lora_rank", 512},
                               {"q_lora_rank", 1536},
                               {"qk_rope_head_dim", 64},
                               {"qk_nope_head_dim", 128},
                               {"v_head_dim", 128}})
    json[key] = x;
  json["attention_bias"] = false;
  json["tie_word_embeddings"] = json["rope_interleave"] = true;
  const int64_t attention = 2048 * 1536 + 1536 + 1536 * 16 * 192 + 2048 * (512 + 64) + 512 +
                            512 * 16 * (128 + 128) + 16 * 128 * 2048;
  const ModelConfig c = expect_numbers(
      json, int64_t{128256} * 2048 + 2048 + 32 * (attention + 3 * 2048 * 6144 + 2 * 2048));
  EXPECT_EQ(c.moe_layer_count(), 0);
  EXPECT_EQ(c.latent.query_width, 1536);
  expect_refused(json, {{"attention_bias", true}, {"rope_interleave", false}});
}

// The sizes of Aria's text.
Json aria() {
  Json json = sizes("aria_text", 100352, 2560, 28, 20, 20, 1664);
  json["moe_num_experts"] = 64;
  json["moe_topk"] = 6;
  json["moe_num_shared_experts"] = 2;
  json["head_dim"] = 128;
  json["attention_bias"] = json["mlp_bias"] = false;
  return json;
}

TEST(DenseFamilies, AriaHasExperts) {
  const int64_t expert = 3 * 2560 * 1664;
  const ModelConfig c =
      expect_numbers(aria(), 2 * int64_t{100352} * 2560 + 2560 +
                                 28 * (4 * 2560 * 2560 + 2 * 2560 + 64 * 2560 + 66 * expert));
  EXPECT_EQ(c.routing.recipe, "mixtral");
  EXPECT_EQ(c.routing.top_k, 6);
  EXPECT_EQ(c.shared_experts * c.shared_width, 3328);
  expect_needed(aria(), {"moe_num_experts", "moe_topk", "moe_num_shared_experts"});
  expect_refused(aria(), {{"mlp_bias", true}});
  EXPECT_FAILS(parse(with(aria(), "hidden_act", "gelu")), "its activation is no SiLU");
  ModelConfig alone = c;
  alone.shared_experts = alone.shared_width = 0;
  EXPECT_EQ(architecture_of(alone).model_type, "mixtral");
}

TEST(DenseFamilies, TextsOfModelsOfPictures) {
  const auto within = [](const char* type, const Json& text, const Json& beside = {}) {
    Json json = {{"model_type", type}, {"text_config", text}, {"vision_config", Json::object()}};
    if (beside.is_object()) json.update(beside);
    return json;
  };
  Json qwen = sizes("qwen3_vl_text", 151936, 2560, 36, 32, 8, 9728);
  qwen["head_dim"] = 128;
  qwen["attention_bias"] = false;
  qwen["rope_scaling"] = {
      {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}, {"rope_type", "default"}};
  const ModelConfig q = parse(within("qwen3_vl", qwen, {{"tie_word_embeddings", true}}));
  EXPECT_EQ(q.model_type, "qwen3");
  EXPECT_EQ(count_params(q).total(), 4022468096);
  Json mistral = sizes("mistral", 131072, 5120, 40, 32, 8, 32768);
  mistral["head_dim"] = 128;
  mistral.erase("tie_word_embeddings");
  const Json of_pictures = {{"projector_hidden_act", "gelu"},
                            {"vision_feature_layer", -1},
                            {"multimodal_projector_bias", false},
                            {"spatial_merge_size", 2},
                            {"image_token_index", 10}};
  const ModelConfig m = parse(within("mistral3", mistral, of_pictures));
  EXPECT_EQ(m.model_type, "mistral");
  EXPECT_EQ(count_params(m).total(), 23572403200);
  EXPECT_EQ(m.attention_window, 0);
  const ModelConfig n =
      parse(within("mistral3", without(ministral3(), "tie_word_embeddings"), of_pictures));
  EXPECT_EQ(n.model_type, "ministral3");
  EXPECT_EQ(n.query_growth.context, 16384);
  EXPECT_FAILS(parse(within("mistral3", with(mistral, "model_type", "qwen2"), of_pictures)),
               "the text of \"mistral3\" is \"qwen2\"; only \"mistral\" or \"ministral3\" or "
               "\"mistral4\" is read of it");
  EXPECT_EQ(config_to_json(parse(within("aria", without(aria(), "tie_word_embeddings"),
                                        {{"projector_patch_to_query_dict", {{"1225", 128}}}}))),
            config_to_json(parse(aria())));
}

}  // namespace
}  // namespace moe::test::dense_families_test
