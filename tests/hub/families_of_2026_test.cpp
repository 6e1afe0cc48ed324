// Families that transformers came to know in 2026, each by a config in its words: read as what it
// is, what it could say that the engine does not do refused by name.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "hub/configs.h"
#include "hub/folder/architectures.h"
#include "hub/folder/config_json.h"
#include "hub/published_configs.h"
#include "model/cost.h"
#include "support/check.h"

namespace moe::test::families_of_2026_test {
namespace {

// The defaults of Mistral 4's class, and what it makes of them
// (transformers:mistral4/configuration_mistral4.py).
Json mistral4() {
  return Json::parse(R"({
    "architectures": ["Mistral4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "first_k_dense_replace": 0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 12288, "kv_lora_rank": 256,
    "max_position_embeddings": 1048576, "model_type": "mistral4", "moe_intermediate_size": 2048,
    "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts_per_tok": 4, "num_hidden_layers": 36,
    "num_key_value_heads": 32, "pretraining_tp": 1, "q_lora_rank": 1024, "qk_head_dim": 128,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_interleave": true,
    "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0,
                        "factor": 128.0, "original_max_position_embeddings": 8192,
                        "max_position_embeddings": 1048576, "beta_fast": 32.0, "beta_slow": 1.0,
                        "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
                        "partial_rotary_factor": 0.5},
    "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1,
    "use_cache": true, "v_head_dim": 128, "vocab_size": 131072})");
}

Json with_rope(Json json, const char* key, const Json& value) {
  json["rope_parameters"][key] = value;
  return json;
}

TEST(FamiliesOf2026, Mistral4) {
  const Json given = mistral4();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "mistral4");
  EXPECT_EQ(c.head_width, 128);
  EXPECT_EQ(c.rotary_width, 64);
  EXPECT_EQ(c.moe_layer_count(), 36);
  EXPECT_EQ(c.routing.recipe, "mixtral");
  EXPECT_EQ(c.query_growth.beta, 0.1f);
  EXPECT_EQ(c.query_growth.context, 8192);
  EXPECT_TRUE(c.attention(0).queries_grow);
  EXPECT_EQ(c.rope_scaling.attention_factor, 1);
  EXPECT_NEAR(c.attention(0).score_factor, std::pow(0.1 * std::log(128) + 1, 2), 1e-5);
  const int64_t attention = 4096 * 1024 + 1024 + 1024 * 32 * 128 + 4096 * (256 + 64) + 256 +
                            256 * 32 * (64 + 128) + 32 * 128 * 4096,
                expert = 3 * 4096 * 2048;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{131072} * 4096 + 4096 +
                                         36 * (attention + 2 * 4096 + 128 * 4096 + 129 * expert));
  expect_same(parse_json(config_to_json(c), "x"), c);
  for (const char* key : {"head_dim", "qk_head_dim", "n_group", "routed_scaling_factor",
                          "attention_bias", "rope_interleave"})
    expect_same(without(given, key), c);
  expect_same(with(given, "sliding_window", nullptr), c);
  Json unsaid = given;  // which transformers works out
  unsaid["rope_parameters"].erase("partial_rotary_factor");
  expect_same(unsaid, c);
  EXPECT_EQ(parse(with(given, "norm_topk_prob", false)).routing.recipe, "deepseek-moe");
  EXPECT_EQ(parse(with(given, "first_k_dense_replace", 2)).dense_first, 2);
}

TEST(FamiliesOf2026, Mistral4Refuses) {
  const Json given = mistral4();
  expect_needed(given, {"first_k_dense_replace", "kv_lora_rank", "n_shared_experts",
                        "norm_topk_prob", "q_lora_rank", "qk_nope_head_dim", "rope_parameters"});
  expect_refused(given, {{"n_group", 4},
                         {"topk_group", 2},
                         {"routed_scaling_factor", 2.5},
                         {"sliding_window", 4096},
                         {"attention_bias", true},
                         {"rope_interleave", false},
                         {"head_dim", 64}});
  EXPECT_FAILS(parse(with_rope(given, "partial_rotary_factor", 0.25)),
               "\"partial_rotary_factor\" is 0.25");
  Json still = given;
  still["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_FAILS(parse(still), "llama_4_scaling_beta");
  // Its queries grow, which DeepSeek's do not.
  Json deepseek = with(without(given, "head_dim"), "model_type", "deepseek_v3");
  deepseek["rope_parameters"].erase("partial_rotary_factor");
  EXPECT_FAILS(parse(deepseek), "llama_4_scaling_beta");
  ModelConfig other = parse(given);
  other.query_growth = {};
  EXPECT_NE(architecture_of(other).model_type, "mistral4");
  other = parse(given);
  other.query_growth.context = 64;
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
}

TEST(FamiliesOf2026, TextOfMistralSmall4) {
  const Json json = {{"model_type", "mistral3"},
                     {"architectures", {"Mistral3ForConditionalGeneration"}},
                     {"text_config", without(mistral4(), "tie_word_embeddings")},
                     {"vision_config", Json::object()},
                     {"projector_hidden_act", "gelu"},
                     {"spatial_merge_size", 2}};
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.model_type, "mistral4");
  EXPECT_EQ(config_to_json(c), config_to_json(parse(mistral4())));
}

// Words of Command A+'s class with sizes of its own (transformers:cohere2_moe/
// configuration_cohere2_moe.py).
Json cohere2_moe() {
  return Json::parse(R"({
    "architectures": ["Cohere2MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "expert_selection_fn": "sigmoid", "first_k_dense_replace": 3, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 768, "layer_norm_eps": 1e-05, "logit_scale": 0.25,
    "max_position_embeddings": 131072, "model_type": "cohere2_moe", "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 64, "num_experts_per_tok": 6,
    "num_hidden_layers": 12, "num_key_value_heads": 4, "num_shared_experts": 2,
    "prefix_dense_intermediate_size": 6144, "prefix_dense_sliding_window_pattern": 1,
    "rms_norm_eps": null, "rope_theta": 50000.0,
    "shared_expert_combination_strategy": "average", "sliding_window": 4096,
    "sliding_window_pattern": 4, "tie_word_embeddings": true, "use_cache": true,
    "vocab_size": 262144})");
}

TEST(FamiliesOf2026, CommandAPlus) {
  const Json given = cohere2_moe();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "cohere2_moe");
  EXPECT_EQ(c.norm_placement, NormPlacement::beside);
  EXPECT_EQ(c.norm, NormKind::layer);
  EXPECT_TRUE(c.shared_average && c.tied && !c.norm_bias);
  EXPECT_EQ(c.multipliers.logits, 4);
  EXPECT_EQ(c.dense_first, 3);
  EXPECT_EQ(c.dense_width, 6144);
  EXPECT_EQ(c.expert_width, 768);
  EXPECT_EQ(c.shared_experts * c.shared_width, 1536);
  // Dense layers see all and turn; behind them three have a window and turn, the fourth neither.
  EXPECT_EQ(c.window_layers, (std::vector<int64_t>{3, 4, 5, 7, 8, 9, 11}));
  EXPECT_EQ(c.nope_layers, (std::vector<int64_t>{6, 10}));
  EXPECT_EQ(c.attention(0).rotary_width, 128);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_TRUE(std::holds_alternative<SigmoidScore>(spec.score));
  EXPECT_EQ(std::get<ChosenScores>(spec.weigh).renormalise, ChosenScores::Renormalise::before_drop);
  EXPECT_EQ(spec.slots(), 6);
  const int64_t attention = 2 * 2048 * 32 * 128 + 2 * 2048 * 4 * 128, row = 3 * 2048;
  EXPECT_EQ(count_params(c).total(), int64_t{262144} * 2048 + 2048 + 12 * (attention + 2048) +
                                         3 * row * 6144 + 9 * (64 * 2048 + row * 66 * 768));
  const Json saved = parse_json(config_to_json(c), "x");
  EXPECT_EQ(saved["expert_selection_fn"], "sigmoid");
  EXPECT_EQ(saved["prefix_dense_sliding_window_pattern"], 1);
  expect_same(saved, c);
  // as transformers saves it
  Json listed = without(without(given, "first_k_dense_replace"), "rope_theta");
  listed["rope_parameters"] = {{"rope_theta", 50000.0}, {"rope_type", "default"}};
  listed["layer_types"] = saved["layer_types"];
  listed["mlp_layer_types"] = saved["mlp_layer_types"];
  expect_same(listed, c);
}

TEST(FamiliesOf2026, CommandAPlusInOtherWords) {
  const Json given = cohere2_moe();
  // Of its own pattern: a window in every second dense layer, and the others do not turn.
  const ModelConfig own = parse(with(given, "prefix_dense_sliding_window_pattern", 2));
  EXPECT_EQ(own.window_layers, (std::vector<int64_t>{0, 2, 3, 4, 5, 7, 8, 9, 11}));
  EXPECT_EQ(own.nope_layers, (std::vector<int64_t>{1, 6, 10}));
  expect_same(parse_json(config_to_json(own), "x"), own);
  const ModelConfig rms = parse(with(given, "rms_norm_eps", 1e-6));
  EXPECT_EQ(rms.norm, NormKind::rms);
  EXPECT_EQ(rms.norm_eps, 1e-6f);
  const ModelConfig sum = parse(with(given, "shared_expert_combination_strategy", "sum"));
  EXPECT_FALSE(sum.shared_average);
  const ModelConfig softmax = parse(with(given, "expert_selection_fn", "softmax"));
  EXPECT_EQ(softmax.routing.recipe, "mixtral");
  EXPECT_EQ(config_to_json(parse(
                with(with(given, "expert_selection_fn", "softmax"), "norm_topk_prob", false))),
            config_to_json(softmax));  // which it asks of sigmoids alone
  const ModelConfig raw = parse(with(given, "norm_topk_prob", false));
  EXPECT_EQ(std::get<ChosenScores>(eval_spec(raw.routing).weigh).renormalise,
            ChosenScores::Renormalise::never);
  EXPECT_EQ(parse(with(given, "prefix_dense_intermediate_size", nullptr)).dense_width, 768);
  EXPECT_EQ(parse(without(given, "first_k_dense_replace")).moe_layer_count(), 12);
  for (const ModelConfig& c : {rms, sum, softmax, raw})
    expect_same(parse_json(config_to_json(c), "x"), c);
  // A mean of nothing and experts is no mean.
  EXPECT_FALSE(parse(with(given, "num_shared_experts", 0)).shared_average);
}

TEST(FamiliesOf2026, CommandAPlusRefuses) {
  const Json given = cohere2_moe();
  expect_needed(given, {"expert_selection_fn", "head_dim", "norm_topk_prob", "num_shared_experts",
                        "shared_expert_combination_strategy", "sliding_window",
                        "sliding_window_pattern", "logit_scale"});
  expect_refused(given, {{"use_qk_norm", true}, {"use_parallel_block", false}});
  EXPECT_FAILS(parse(with(given, "expert_selection_fn", "tanh")), "\"expert_selection_fn\"");
  EXPECT_FAILS(parse(with(given, "shared_expert_combination_strategy", "max")),
               "\"shared_expert_combination_strategy\"");
  std::vector<std::string> types(12, "sparse");
  types[0] = types[2] = "dense";
  EXPECT_FAILS(parse(with(without(given, "first_k_dense_replace"), "mlp_layer_types", types)),
               "\"mlp_layer_types\" has \"dense\" at layer 2");
  ModelConfig other = parse(given);
  other.nope_layers = {0, 6, 10};  // one dense layer of three stands
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  other = parse(given);
  other.routing.stages = "{}";
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  EXPECT_TRUE(parse(parse_json(config_to_json(other), "x")).shared_average);
}

// The defaults of Kolibri 1's class (transformers:kolibri1/configuration_kolibri1.py).
TEST(FamiliesOf2026, Kolibri) {
  const Json given = Json::parse(R"({
    "architectures": ["Kolibri1ForCausalLM"], "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
    "max_position_embeddings": 262144, "model_type": "kolibri1", "moe_intermediate_size": 512,
    "norm_topk_prob": false, "num_attention_heads": 48, "num_experts": 384,
    "num_experts_per_tok": 6, "num_hidden_layers": 50, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "sliding_window": 513,
    "tie_word_embeddings": false, "use_cache": true, "vocab_size": 128000})");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "kolibri1");
  EXPECT_EQ(c.norm_placement, NormPlacement::both);
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_EQ(c.attention(3).window, 513);
  EXPECT_EQ(c.attention(3).rotary_width, 128);
  EXPECT_EQ(c.attention(4).window, 0);
  EXPECT_EQ(c.attention(4).rotary_width, 0);
  EXPECT_EQ(c.nope_layers.size(), 10u);
  EXPECT_EQ(c.moe_layer_count(), 50);
  EXPECT_EQ(c.routing.coef.balance, 0.006f);
  const RoutingSpec train = train_spec(c.routing);
  EXPECT_TRUE(std::holds_alternative<RawScore>(train.score));
  EXPECT_NE(selection_bias(train.select), nullptr);
  EXPECT_EQ(train.slots(), 6);
  EXPECT_FALSE(std::get<ChosenSigmoids>(train.weigh).renormalise);
  const ModelConfig divided = parse(with(given, "norm_topk_prob", true));
  EXPECT_TRUE(std::get<ChosenSigmoids>(eval_spec(divided.routing).weigh).renormalise);
  const int64_t attention = 2 * 2560 * 48 * 128 + 2 * 2560 * 4 * 128 + 2 * 128,
                expert = 3 * 2560 * 512;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{128000} * 2560 + 2560 +
                                         50 * (attention + 4 * 2560 + 384 * 2560 + 385 * expert));
  EXPECT_EQ(count_params(c).buffers, 50 * 384);
  for (const ModelConfig& one : {c, divided})
    expect_same(parse_json(config_to_json(one), "x"), one);
  // as transformers saves it
  Json listed = with(without(given, "num_experts"), "num_local_experts", 384);
  for (int64_t i = 0; i < 50; ++i)
    listed["layer_types"].push_back((i + 1) % 5 == 0 ? "full_attention" : "sliding_attention");
  expect_same(listed, c);
  // Without windows all of it turns.
  Json whole = with(given, "sliding_window", nullptr);
  EXPECT_TRUE(parse(whole).nope_layers.empty());
  whole["layer_types"] = listed["layer_types"];
  EXPECT_FAILS(parse(whole), "\"layer_types\" has \"sliding_attention\" at layer 0");

  expect_needed(given, {"head_dim", "norm_topk_prob", "shared_expert_intermediate_size",
                        "sliding_window", "num_experts_per_tok"});
  expect_refused(given, {{"attention_bias", true}, {"decoder_sparse_step", 2}});
  ModelConfig other = c;
  other.routing = default_options(find_recipe("deepseek-v3"), 384, 6, 50);
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  EXPECT_FAILS(architecture_of(other, "kolibri1", "here"),
               "routes in another way than by sigmoids of chosen logits");
}

// The defaults of A.X K1's class (transformers:axk1/configuration_axk1.py).
TEST(FamiliesOf2026, AxK1) {
  const Json given = Json::parse(R"({
    "architectures": ["AXK1ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 163691, "eos_token_id": 163691, "first_k_dense_replace": 1, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 32768,
    "model_type": "axk1", "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 192,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
    "q_lora_rank": 1536, "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_interleave": true,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "tie_word_embeddings": false, "topk_group": 4,
    "use_cache": true, "v_head_dim": 128, "vocab_size": 163840})");
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "axk1");
  EXPECT_TRUE(c.moe_out_norm);
  EXPECT_EQ(c.norm_placement, NormPlacement::pre);
  EXPECT_EQ(c.moe_layer_count(), 60);
  const RoutingSpec spec = eval_spec(c.routing);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).groups, 8);
  EXPECT_EQ(std::get<GroupedTopK>(spec.select).keep, 4);
  // A norm more than DeepSeek-V3's layers have, in those that route alone.
  const ModelConfig deepseek = parse(with(given, "model_type", "deepseek_v3"));
  EXPECT_FALSE(deepseek.moe_out_norm);
  EXPECT_EQ(count_params(c).total(), count_params(deepseek).total() + 60 * 7168);
  EXPECT_NEAR(static_cast<double>(count_params(c).total()), 519e9, 1e9);  // "519B"
  expect_same(parse_json(config_to_json(c), "x"), c);
  expect_needed(
      given, {"n_group", "n_shared_experts", "q_lora_rank", "routed_scaling_factor", "topk_group"});
  expect_refused(given, {{"norm_topk_prob", false},
                         {"moe_layer_freq", 2},
                         {"attention_bias", true},
                         {"scoring_func", "softmax"}});
  // Each alone can say no more than it has.
  ModelConfig other = c;
  other.moe_out_norm = false;
  EXPECT_EQ(architecture_of(other).model_type, "deepseek_v3");
  other = c;
  other.dense_first = 0;
  other.moe_every = 2;  // which deepseek_v3 could say
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  other = c;
  other.routing = default_options(find_recipe("mixtral"), 192, 8, 60);
  EXPECT_EQ(architecture_of(other).model_type, "moe_cpp");
  EXPECT_TRUE(parse(parse_json(config_to_json(other), "x")).moe_out_norm);
}

}  // namespace
}  // namespace moe::test::families_of_2026_test
