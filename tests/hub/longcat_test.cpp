// LongCat-Flash's configs, as published and as transformers writes them, and how its tensors lie: a
// layer of its is two of ours.
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

namespace moe::test::longcat_test {
namespace {

// The defaults of the class (transformers:longcat_flash/configuration_longcat_flash.py).
Json longcat() {
  return Json::parse(R"({
    "architectures": ["LongcatFlashForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "expert_ffn_hidden_size": 2048,
    "ffn_hidden_size": 12288, "head_dim": 64, "hidden_act": "silu", "hidden_size": 6144,
    "initializer_range": 0.02, "kv_lora_rank": 512, "max_position_embeddings": 131072,
    "model_type": "longcat_flash", "moe_topk": 12, "n_routed_experts": 512,
    "num_attention_heads": 64, "num_key_value_heads": 64, "num_layers": 28,
    "output_router_logits": false, "pad_token_id": null, "q_lora_rank": 1536, "qk_head_dim": 192,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default"},
    "routed_scaling_factor": 6.0, "tie_word_embeddings": false, "use_cache": true,
    "v_head_dim": 128, "vocab_size": 131072, "zero_expert_num": 256})");
}

TEST(Longcat, IsReadAsWhatItIs) {
  const Json given = longcat();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "longcat_flash");
  EXPECT_EQ(c.layers, 56);
  EXPECT_EQ(c.moe_layer_count(), 28);
  EXPECT_TRUE(c.is_moe(0) && !c.is_moe(1) && c.joins_late(1) && !c.joins_late(2));
  EXPECT_EQ(c.routing.zero_experts, 256);
  EXPECT_EQ(c.latent.factor, static_cast<float>(std::sqrt(12.0)));
  EXPECT_EQ(c.latent.query_factor, 2.0f);
  const RoutingSpec spec = train_spec(c.routing);
  EXPECT_EQ(spec.experts, 768);
  EXPECT_EQ(spec.slots(), 12);
  EXPECT_TRUE(std::holds_alternative<SoftmaxScore>(spec.score));
  EXPECT_NE(selection_bias(spec.select), nullptr);
  const auto& weigh = std::get<ChosenScores>(spec.weigh);
  EXPECT_EQ(weigh.scale, 6.0f);
  EXPECT_EQ(weigh.renormalise, ChosenScores::Renormalise::never);
  // 560 billion numbers, of which a token meets 27 on average (arXiv 2509.01322)
  const int64_t d = 6144,
                attention = d * 1536 + 1536 + 1536 * 64 * 192 + d * (512 + 64) + 512 +
                            512 * 64 * (128 + 128) + 64 * 128 * d,
                layer = 2 * (attention + 2 * d + 3 * d * 12288) + 768 * d + 512 * 3 * d * 2048;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{131072} * d + d + 28 * layer);
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 560e9, 3e9);
  EXPECT_EQ(count_params(c).experts_active, 28 * int64_t{8} * 3 * d * 2048);
  expect_same(parse_json(config_to_json(c), "x"), c);
  // As it was published, with words of its first code beside it.
  Json published = without(without(given, "num_key_value_heads"), "rope_parameters");
  published.update({{"rope_theta", 10000000.0},
                    {"attention_method", "MLA"},
                    {"zero_expert_type", "identity"},
                    {"router_bias", false},
                    {"mla_scale_q_lora", true},
                    {"mla_scale_kv_lora", true},
                    {"num_hidden_layers", 28}});
  for (const char* key : {"hidden_act", "tie_word_embeddings", "head_dim", "qk_head_dim"})
    published.erase(key);
  expect_same(published, c);
  EXPECT_EQ(parse(with(given, "zero_expert_num", nullptr)).routing.zero_experts, 0);
}

TEST(Longcat, Refuses) {
  const Json given = longcat();
  expect_needed(
      given, {"num_layers", "zero_expert_num", "moe_topk", "n_routed_experts",
              "expert_ffn_hidden_size", "ffn_hidden_size", "routed_scaling_factor", "q_lora_rank"});
  expect_refused(given, {{"hidden_act", "gelu"},
                         {"router_bias", true},
                         {"zero_expert_type", "copy"},
                         {"mla_scale_q_lora", false},
                         {"norm_topk_prob", true},
                         {"num_hidden_layers", 27},
                         {"attention_bias", true}});
  for (const auto change :
       {+[](ModelConfig& c) { c.shortcut = false; }, +[](ModelConfig& c) { c.latent.factor = 1; },
        +[](ModelConfig& c) { c.shared_width = 100; }, +[](ModelConfig& c) { c.dense_first = 2; },
        +[](ModelConfig& c) { c.routing.stages = R"({"select":{"bias":true,"type":"top_k"}})"; }}) {
    ModelConfig c = parse(given);
    change(c);
    EXPECT_EQ(architecture_of(c).model_type, "moe_cpp");
    expect_same(parse_json(config_to_json(c), "x"), c);
  }
}

TEST(Longcat, TensorsLieAsTheFamilyHasThem) {
  const TempFolder folder;
  const ModelConfig c = small_family("longcat_flash");
  const auto model = drawn_model(c, 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers." + name));
  };
  EXPECT_EQ(shape("1.input_layernorm.0.weight"), "f32 [8]");
  EXPECT_EQ(shape("1.self_attn.1.q_a_proj.weight"), "f32 [5, 8]");
  EXPECT_EQ(shape("0.mlps.1.gate_proj.weight"), "f32 [10, 8]");
  EXPECT_EQ(shape("0.mlp.router.classifier.weight"), "f32 [5, 8]");
  EXPECT_EQ(shape("0.mlp.router.e_score_correction_bias"), "f32 [5]");
  EXPECT_EQ(shape("1.mlp.experts.2.down_proj.weight"), "f32 [8, 6]");
  EXPECT_FALSE(file.contains("model.layers.0.mlp.experts.3.gate_proj.weight"));
  EXPECT_FALSE(file.contains("model.layers.2.input_layernorm.0.weight"));
  const auto same = [&](const std::string& name, Part part, ParamKind kind, int64_t layer) {
    EXPECT_EQ(values(file.get("model.layers." + name)),
              values(model->find(part, kind, layer)->value))
        << name;
  };
  // Of the first half of a layer an FFN is the shared expert of ours, of the second the dense one.
  same("1.post_attention_layernorm.0.weight", Part::norms, ParamKind::ffn_norm, 2);
  same("1.post_attention_layernorm.1.weight", Part::norms, ParamKind::ffn_norm, 3);
  same("1.self_attn.0.o_proj.weight", Part::attention, ParamKind::o, 2);
  same("1.mlp.router.classifier.weight", Part::router, ParamKind::weight, 2);
  EXPECT_EQ(values(file.get("model.layers.1.mlps.0.up_proj.weight")),
            values(model->find(Part::shared, ParamKind::up, 2)->value.at(0)));
  EXPECT_EQ(values(file.get("model.layers.1.mlps.1.up_proj.weight")),
            values(model->find(Part::dense_ffn, ParamKind::up, 3)->value.at(0)));
}

// transformers' class has matrices for zero experts, which it saves and does not read.
TEST(Longcat, MatricesOfZeroExpertsAreReadOver) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("longcat_flash"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  std::vector<float> numbers(6 * 8);
  const Tensor matrix(numbers.data(), DType::f32, {6, 8});
  std::vector<SafetensorsItem> more;
  for (const int layer : {0, 1})
    for (const int expert : {3, 4})
      for (const char* which : {"gate_proj", "up_proj"})
        more.push_back(
            {fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, which), matrix,
             DType::f32});
  rewrite_tensors(
      folder.path(), [](SafetensorsItem&) { return true; }, more);
  const LoadedModel loaded = load_model(folder.path());
  for (size_t i = 0; i < model->params().size(); ++i)
    EXPECT_EQ(values(loaded.model->params()[i]->value), values(model->params()[i]->value))
        << model->params()[i]->name;
  more.push_back({"model.layers.0.mlp.experts.5.up_proj.weight", matrix, DType::f32});
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  rewrite_tensors(
      folder.path(), [](SafetensorsItem&) { return true; }, more);
  EXPECT_FAILS(load_model(folder.path()), "experts.5.up_proj.weight\" is no part of the model");
}

}  // namespace
}  // namespace moe::test::longcat_test
