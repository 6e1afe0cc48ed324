// DBRX, whose config says attention and experts in configs within its own, and whose experts lie
// below each other in three matrices.
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

namespace moe::test::dbrx_test {
namespace {

// DBRX's sizes, as they are known; its own page was not read.
Json dbrx() {
  return Json::parse(R"({
    "architectures": ["DbrxForCausalLM"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "d_model": 6144, "emb_pdrop": 0.0,
    "ffn_config": {"ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0.01,
                   "moe_loss_weight": 0.05, "moe_num_experts": 16, "moe_top_k": 4},
    "initializer_range": 0.02, "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48,
    "n_layers": 40, "output_router_logits": false, "resid_pdrop": 0.0,
    "router_aux_loss_coef": 0.05, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0", "use_cache": true, "vocab_size": 100352})");
}

Json within(Json json, const char* part, const char* key, const Json& value) {
  json[part][key] = value;
  return json;
}
Json lacking(Json json, const char* part, const char* key) {
  json[part].erase(key);
  return json;
}

TEST(Dbrx, AsPublished) {
  const Json given = dbrx();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "dbrx");
  EXPECT_EQ(c.norm, NormKind::layer);
  EXPECT_FALSE(c.norm_bias || c.tied || c.attention_bias);
  EXPECT_EQ(c.attention(0).clip, 8);
  EXPECT_EQ(c.head_width, 128);
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.routing.recipe, "mixtral");
  EXPECT_EQ(c.routing.top_k, 4);
  EXPECT_FLOAT_EQ(c.routing.coef.balance, 0.2f);
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{100352} * 6144 + 6144 +
                                         40 * (2 * 6144 * 6144 + 2 * 6144 * 8 * 128 + 2 * 6144 +
                                               16 * 6144 + 16 * 3 * int64_t{6144} * 10752));
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 132e9, 1e9);  // "132B"
  expect_same(parse_json(config_to_json(c), "x"), c);
}

TEST(Dbrx, InOtherWords) {
  const Json given = dbrx();
  const ModelConfig c = parse(given);
  // as transformers 5 saves it
  Json newer = with(without(given, "router_aux_loss_coef"), "num_key_value_heads", 8);
  newer["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  newer["ffn_config"].update({{"ffn_act_fn", {{"name", "silu"}}},
                              {"hidden_size", 6144},
                              {"moe_jitter_eps", nullptr},
                              {"moe_normalize_expert_weights", 1.0}});
  expect_same(newer, c);
  expect_same(lacking(newer, "attn_config", "rope_theta"), c);
  const ModelConfig raw =
      parse(within(given, "ffn_config", "moe_normalize_expert_weights", nullptr));
  EXPECT_EQ(raw.routing.recipe, "qwen2-moe");
  const ModelConfig whole = parse(within(given, "attn_config", "clip_qkv", nullptr));
  EXPECT_EQ(whole.qkv_clip, 0);
  const ModelConfig gelu = parse(within(given, "ffn_config", "ffn_act_fn", {{"name", "gelu"}}));
  EXPECT_EQ(gelu.act, ops::Act::gelu);
  for (const ModelConfig& one : {raw, whole, gelu})
    expect_same(parse_json(config_to_json(one), "x"), one);
}

TEST(Dbrx, Refuses) {
  const Json given = dbrx();
  expect_needed(given, {"d_model", "n_layers", "n_heads", "max_seq_len", "resid_pdrop", "emb_pdrop",
                        "attn_config", "ffn_config"});
  for (const char* key : {"kv_n_heads", "clip_qkv", "rope_theta"})
    EXPECT_FAILS(parse(lacking(given, "attn_config", key)), fmt::format("\"{}\" is missing", key));
  for (const char* key : {"ffn_hidden_size", "moe_num_experts", "moe_top_k", "moe_loss_weight"})
    EXPECT_FAILS(parse(lacking(given, "ffn_config", key)), fmt::format("\"{}\" is missing", key));
  EXPECT_FAILS(parse(within(given, "ffn_config", "moe_normalize_expert_weights", 2)),
               "only 1 or null");
  EXPECT_FAILS(parse(within(given, "ffn_config", "moe_bias", true)), "\"moe_bias\" is not known");
  EXPECT_FAILS(parse(within(given, "attn_config", "qk_ln", true)), "\"qk_ln\" is not known");
  EXPECT_FAILS(parse(with(given, "tie_word_embeddings", true)), "\"tie_word_embeddings\" is true");
  EXPECT_FAILS(parse(with(given, "emb_pdrop", 0.1)), "\"emb_pdrop\" is 0.1");
  EXPECT_FAILS(parse(with(given, "num_key_value_heads", 4)), "\"kv_n_heads\" is another number");
  EXPECT_FAILS(
      parse(with(given, "rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}})),
      "\"rope_parameters\" says another base");
  const ModelConfig c = parse(given);
  const auto becomes_another = [&](auto change) {
    ModelConfig other = c;
    change(other);
    EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
    EXPECT_EQ(parse(parse_json(config_to_json(other), "x")).qkv_clip, 8);
  };
  becomes_another([](ModelConfig& m) { m.norm_bias = true; });
  becomes_another([](ModelConfig& m) { m.norm_eps = 1e-6f; });
  becomes_another([](ModelConfig& m) { m.dense_first = 1; });
  becomes_another([](ModelConfig& m) { m.tied = true; });
  becomes_another([](ModelConfig& m) { m.nope_layers = {3}; });
}

TEST(Dbrx, TensorsLieAsThere) {
  const auto model = drawn_model(small_family("dbrx"), 5);
  const TempFolder folder;
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const std::string block = "transformer.blocks.1.", mlp = block + "ffn.experts.mlp.";
  const auto bank = [&](ParamKind kind) {
    return model->find(Part::experts, kind, 1, false)->value;
  };
  // three experts of 12 numbers
  EXPECT_EQ(describe(file.get(mlp + "w1")), "f32 [36, 8]");
  EXPECT_EQ(values(file.get(mlp + "w1")), values(bank(ParamKind::gate)));
  EXPECT_EQ(values(file.get(mlp + "v1")), values(bank(ParamKind::up)));
  const Tensor w2 = file.get(mlp + "w2"), down = bank(ParamKind::down);
  EXPECT_EQ(describe(w2), "f32 [36, 8]");
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t f = 0; f < 12; ++f)
      for (int64_t d = 0; d < 8; ++d)
        EXPECT_EQ(w2.row<float>(e * 12 + f)[d], down.as<float>()[(e * 8 + d) * 12 + f]);
  EXPECT_EQ(describe(file.get(block + "norm_attn_norm.attn.Wqkv.weight")), "f32 [16, 8]");
  EXPECT_TRUE(file.contains(block + "norm_attn_norm.norm_2.weight"));
  EXPECT_TRUE(file.contains(block + "ffn.router.layer.weight"));
  for (const LoadedModel& loaded : {load_model(folder.path()), open_model(folder.path(), {})})
    for (size_t i = 0; i < model->params().size(); ++i) {
      const Param &got = *loaded.model->params()[i], &want = *model->params()[i];
      SCOPED_TRACE(want.name);
      if (want.value.rank < 2) EXPECT_EQ(values(got.value), values(want.value));
      else
        for (int64_t e = 0; e < want.value.matrices(); ++e)
          EXPECT_EQ(values(got.expert(e)), values(want.expert(e)));
    }
}

}  // namespace
}  // namespace moe::test::dbrx_test
