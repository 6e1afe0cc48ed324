// Flint's configs, as transformers writes them, and the names of its tensors.
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

namespace moe::test::flint_test {
namespace {

// The defaults of the class, and what it makes of them
// (transformers:flint/configuration_flint.py).
Json flint() {
  Json json = Json::parse(R"({
    "architectures": ["FlintForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 262144,
    "mlp_only_layers": [0, 1], "model_type": "flint", "moe_intermediate_size": 512,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 6, "num_hidden_layers": 49, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "router_aux_loss_coef": 0.0005, "shared_expert_intermediate_size": 1024,
    "sliding_window": 513, "tie_word_embeddings": false, "use_cache": true,
    "vocab_size": 150144})");
  for (int64_t i = 0; i < 49; ++i)
    json["layer_types"].push_back(i < 2 || i % 4 == 1 || i == 48 ? "full_attention"
                                                                 : "sliding_attention");
  return json;
}

TEST(Flint, IsReadAsWhatItIs) {
  const Json given = flint();
  const ModelConfig c = parse(given);
  EXPECT_EQ(c.model_type, "flint");
  EXPECT_EQ(c.moe_layer_count(), 47);
  EXPECT_TRUE(!c.is_moe(1) && c.is_moe(2));
  EXPECT_EQ(c.qk_norm, QkNorm::head);
  EXPECT_TRUE(c.shared_experts == 1 && !c.shared_gate);
  EXPECT_EQ(c.shared_width, 1024);
  for (const int64_t full : {0, 1, 5, 45, 48}) {
    EXPECT_EQ(c.attention(full).window, 0) << full;
    EXPECT_EQ(c.attention(full).rotary_width, 0) << full;
    EXPECT_TRUE(c.attention(full).sinks) << full;
  }
  for (const int64_t windowed : {2, 4, 47}) {
    EXPECT_EQ(c.attention(windowed).window, 513) << windowed;
    EXPECT_EQ(c.attention(windowed).rotary_width, 128) << windowed;
    EXPECT_TRUE(c.attention(windowed).sinks) << windowed;
  }
  EXPECT_EQ(c.routing.coef.balance, 0.003f);
  const RoutingSpec train = train_spec(c.routing);
  EXPECT_TRUE(std::holds_alternative<RawScore>(train.score));
  EXPECT_EQ(selection_bias(train.select), nullptr);
  EXPECT_EQ(train.slots(), 6);
  EXPECT_TRUE(std::get<ChosenSigmoids>(train.weigh).renormalise);
  const int64_t attention = 2 * 2048 * 32 * 128 + 2 * 2048 * 4 * 128 + 2 * 128 + 32, row = 3 * 2048;
  EXPECT_EQ(count_params(c).total(), 2 * int64_t{150144} * 2048 + 2048 +
                                         49 * (attention + 2 * 2048) + 2 * row * 6144 +
                                         47 * (256 * 2048 + row * (256 * 512 + 1024)));
  const ModelConfig raw = parse(with(given, "norm_topk_prob", false));
  EXPECT_FALSE(std::get<ChosenSigmoids>(eval_spec(raw.routing).weigh).renormalise);
  const ModelConfig second =
      parse(with(with(given, "mlp_only_layers", Json::array()), "decoder_sparse_step", 2));
  EXPECT_TRUE(!second.is_moe(0) && second.is_moe(1) && !second.is_moe(2));
  for (const ModelConfig& one : {c, raw, second})
    expect_same(parse_json(config_to_json(one), "x"), one);
}

TEST(Flint, Refuses) {
  const Json given = flint();
  expect_needed(given, {"head_dim", "layer_types", "norm_topk_prob", "decoder_sparse_step",
                        "shared_expert_intermediate_size", "sliding_window"});
  const auto type_of = [&](auto change) {
    ModelConfig c = parse(given);
    change(c);
    return architecture_of(c).model_type;
  };
  EXPECT_EQ(type_of([](ModelConfig&) {}), "flint");
  EXPECT_EQ(type_of([](ModelConfig& c) { c.attention_sinks = false; }), "moe_cpp");
  EXPECT_EQ(type_of([](ModelConfig& c) { c.nope_layers = {0}; }), "moe_cpp");
  EXPECT_EQ(type_of([](ModelConfig& c) { c.shared_gate = true; }), "moe_cpp");
  EXPECT_EQ(type_of([](ModelConfig& c) {
              c.routing = default_options(find_recipe("deepseek-v3"), 256, 6, 47);
            }),
            "moe_cpp");
}

TEST(Flint, TensorsAreCalledAsTheFamilyCallsThem) {
  const TempFolder folder;
  const auto model = drawn_model(small_family("flint"), 5);
  save_model(folder.path(), *model, *make_tokenizer("bytes"));
  const Safetensors file = Safetensors::open(folder.path());
  const auto shape = [&](const std::string& name) {
    return describe(file.get("model.layers." + name));
  };
  EXPECT_EQ(shape("0.self_attn.softmax_offset"), "f32 [4]");
  EXPECT_EQ(shape("1.self_attn.softmax_offset"), "f32 [4]");
  EXPECT_EQ(shape("1.self_attn.k_norm.weight"), "f32 [6]");
  EXPECT_EQ(shape("0.mlp.gate_proj.weight"), "f32 [12, 8]");
  EXPECT_EQ(shape("1.mlp.gate.weight"), "f32 [3, 8]");
  EXPECT_EQ(shape("1.mlp.shared_expert.down_proj.weight"), "f32 [8, 10]");
  EXPECT_EQ(shape("1.mlp.experts.2.up_proj.weight"), "f32 [6, 8]");
}

}  // namespace
}  // namespace moe::test::flint_test
