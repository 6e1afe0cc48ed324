// MiniMax-01's files: lightning attention in listed layers, one factor of residuals.
#include "hub/gguf_files.h"

namespace moe::test::gguf_minimax_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::expect_back_from_folder;
using gguf_files::logits_of;
using Type = GgufEntry::Type;
using Flags = std::vector<bool>;

const std::string kPrefix = "minimax-01.";

class GgufMiniMax : public ChangedGguf {
 protected:
  void begin(const ModelConfig& c = lightning_config(moe_config("mixtral"))) {
    tensors_.clear();
    model_ = drawn_model(c);
    start();
    whole_ = target_.metadata;
  }
  void without(const std::string& key) {
    target_.metadata = whole_;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == kPrefix + key; });
  }
  void expect_refused_with(const GgufEntry& changed, const char* reason) {
    target_.metadata = whole_;
    set(changed);
    expect_refused(reason);
  }

  std::vector<GgufEntry> whole_;
};

TEST_F(GgufMiniMax, KeysAndTensors) {
  begin();
  EXPECT_EQ(std::get<std::string>(entry("general.architecture").value), "minimax-01");
  EXPECT_EQ(std::get<Flags>(entry(kPrefix + "attention.recurrent_layers").value),
            (Flags{true, false, true}));
  EXPECT_EQ(std::get<double>(entry(kPrefix + "residual_scale").value), 2.5);
  for (const auto& [key, x] : {std::pair{"attention.head_count", 4},
                               {"attention.head_count_kv", 2},
                               {"attention.key_length", 16},
                               {"rope.dimension_count", 8},
                               {"feed_forward_length", 32},
                               {"expert_count", 4},
                               {"expert_used_count", 2}})
    EXPECT_EQ(std::get<int64_t>(entry(kPrefix + key).value), x) << key;
  EXPECT_EQ(describe(file_->get("blk.0.attn_qkv.weight")), "f32 [192, 32]");
  EXPECT_EQ(describe(file_->get("blk.0.attn_gate.weight")), "f32 [64, 32]");
  EXPECT_EQ(describe(file_->get("blk.0.attn_norm_2.weight")), "f32 [64]");
  EXPECT_EQ(describe(file_->get("blk.0.attn_output.weight")), "f32 [32, 64]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_q.weight")), "f32 [64, 32]");
  EXPECT_FALSE(file_->contains("blk.0.attn_q.weight"));
  EXPECT_FALSE(file_->contains("blk.1.attn_qkv.weight"));
  // The second head's keys stand behind its queries, these behind all of the first head's.
  const Tensor keys = model_->find(Part::attention, ParamKind::lightning_k, 0)->value;
  EXPECT_EQ(values(file_->get("blk.0.attn_qkv.weight").slice_rows(64, 80)),
            values(keys.slice_rows(16, 32)));
  expect_back_from_folder(path_, folder_, *model_, "minimax");
}

// Where the layers are not listed all have it but each eighth, or as a number says.
TEST_F(GgufMiniMax, LayersThatAreNotListed) {
  ModelConfig c = lightning_config(moe_config("mixtral"));
  c.layers = 9;
  c.routing = default_options(find_recipe("mixtral"), 4, 2, c.layers);
  c.lightning_layers = {0, 1, 2, 3, 4, 5, 6, 8};
  begin(c);
  without("attention.recurrent_layers");
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  c.lightning_layers = {0, 1, 3, 4, 6, 7};
  begin(c);
  without("attention.recurrent_layers");
  set({kPrefix + "full_attention_interval", Type::u32, int64_t{3}});
  write();
  const LoadedModel loaded = open_model(folder_ / "b.gguf", {});
  EXPECT_EQ(loaded.model->config().lightning_layers, c.lightning_layers);
  EXPECT_EQ(logits_of(*loaded.model), logits_of(*model_));
}

TEST_F(GgufMiniMax, Refuses) {
  begin();
  for (const char* key : {"residual_scale", "feed_forward_length", "rope.freq_base"}) {
    without(key);
    expect_refused("key \"" + kPrefix + key + "\" is missing");
  }
  expect_refused_with({kPrefix + "residual_scale", Type::f32, 0.0}, "it must be at least");
  expect_refused_with({kPrefix + "attention.recurrent_layers", Type::booleans, Flags{true, false}},
                      "lists 2 layers of 3");
  expect_refused_with({kPrefix + "logit_scale", Type::f32, 2.0}, "is not known here");
}

TEST_F(GgufMiniMax, WhyOwn) {
  const auto expect_own_of = [](const ModelConfig& config, const char* reason) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, gguf_form_of(config).why_own);
  };
  const ModelConfig given = lightning_config(moe_config("mixtral"));
  EXPECT_EQ(gguf_form_of(given).why_own, "");
  ModelConfig c = given;
  c.multipliers.lightning_sum.kept = 2;
  expect_own_of(c, "MiniMax-01 (\"minimax-01\") comes nearest, but its residuals, and what is");
  c = given;
  c.multipliers.attention_sum.added = 2;
  expect_own_of(c, "have several factors");
  c = given;
  c.lightning_norm_eps = 1e-5f;
  expect_own_of(c, "another epsilon than 1e-6");
  c = given;
  c.lightning_layers.clear();
  expect_own_of(c, "none of its layers has lightning attention");
  c = given;
  c.multipliers.embedding = 2;
  expect_own_of(c, "it has multipliers");
  c = given;
  c.attention_window = 5;
  expect_own_of(c, "its attention sees a window of the last tokens only");
}

}  // namespace
}  // namespace moe::test::gguf_minimax_test
