// Files of Ling 3.0: linear attention whose decays have a floor, latent attention with a gate of
// each head.
#include "hub/gguf_files.h"

namespace moe::test::gguf_ling3_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::expect_back_from_folder;
using gguf_files::logits_of;
using Type = GgufEntry::Type;
using List = std::vector<int64_t>;

ModelConfig small_ling() {
  ModelConfig latent = grouped_config();
  make_latent(latent);
  return ling_config(latent);
}

class GgufLing3 : public ChangedGguf {
 protected:
  void begin() {
    model_ = drawn_model(small_ling());
    start();
    whole_ = target_.metadata;
  }
  void expect_refused_with(const GgufEntry& changed, const char* reason) {
    target_.metadata = whole_;
    set(changed);
    expect_refused(reason);
  }

  std::vector<GgufEntry> whole_;
};

TEST_F(GgufLing3, KeysAndTensors) {
  begin();
  EXPECT_EQ(std::get<List>(entry("bailingmoe3.attention.head_count_kv").value), (List{0, 1, 0}));
  EXPECT_EQ(std::get<bool>(entry("bailingmoe3.kda.safe_gate").value), true);
  EXPECT_EQ(std::get<double>(entry("bailingmoe3.kda.gate_lower_bound").value), -5);
  for (const auto& [key, x] : {std::pair{"kda.head_dim", 16},
                               {"ssm.conv_kernel", 4},
                               {"attention.key_length_mla", 24},
                               {"attention.value_length_mla", 16},
                               {"attention.key_length", 40},
                               {"rope.dimension_count", 8},
                               {"expert_shared_count", 1},
                               {"expert_shared_feed_forward_length", 32},
                               {"leading_dense_block_count", 1},
                               {"expert_group_count", 4}})
    EXPECT_EQ(std::get<int64_t>(entry(std::string("bailingmoe3.") + key).value), x) << key;
  EXPECT_EQ(describe(file_->get("blk.0.ssm_a")), "f32 [4, 1]");
  EXPECT_EQ(values(file_->get("blk.0.ssm_a")), std::vector<double>(4, 1));
  EXPECT_EQ(describe(file_->get("blk.0.ssm_f_a.weight")), "f32 [64, 32]");
  EXPECT_EQ(describe(file_->get("blk.0.ssm_conv1d_k.weight")), "f32 [64, 1, 4]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_g_a.weight")),
            values(model_->find(Part::attention, ParamKind::linear_z, 2)->value));
  EXPECT_EQ(describe(file_->get("blk.1.attn_gate.weight")), "f32 [4, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_k_b.weight")), "f32 [4, 32, 16]");
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_output.weight", "blk.0.ssm_dt.bias",
                           "blk.1.attn_q.weight", "blk.1.attn_output.weight"})
    EXPECT_TRUE(file_->contains(name)) << name;
  for (const char* name :
       {"blk.0.ssm_f_b.weight", "blk.0.ssm_g_b.weight", "blk.0.attn_gate.weight"})
    EXPECT_FALSE(file_->contains(name)) << name;
  expect_back_from_folder(path_, folder_, *model_, "bailing_hybrid");
}

// What e^x is in the file is x here.
TEST_F(GgufLing3, DecaysAreTheirLogarithms) {
  begin();
  const float twice[] = {2, 2, 2, 2};
  for (NamedTensor& t : tensors_)
    if (t.name == "blk.2.ssm_a") t.value = Tensor(const_cast<float*>(twice), DType::f32, {4, 1});
  write();
  const LoadedModel loaded = load_model(folder_ / "b.gguf");
  for (const double x :
       values(loaded.model->find(Part::attention, ParamKind::linear_a_log, 2, true)->value))
    EXPECT_NEAR(x, std::log(2.0), 1e-7);
}

// The converter says limits of experts that there are not, and layers that predict further tokens.
TEST_F(GgufLing3, OfTheConverter) {
  begin();
  const std::string prefix = "bailingmoe3.";
  set({prefix + "block_count", Type::u32, int64_t{4}});
  set({prefix + "nextn_predict_layers", Type::u32, int64_t{1}});
  set({prefix + "attention.head_count_kv", Type::i32s, List{0, 1, 0, 1}});
  set({prefix + "swiglu_clamp_exp", Type::f32s, std::vector<double>{0, 0, 0, 0}});
  for (const char* key : {"kda.safe_gate", "attention.q_lora_rank", "attention.value_length"})
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == prefix + key; });
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  EXPECT_EQ(logits_of(*open_model(folder_ / "b.gguf", {}).model), logits_of(*model_));
}

TEST_F(GgufLing3, Refuses) {
  begin();
  const std::string prefix = "bailingmoe3.";
  for (const char* key : {"kda.head_dim", "kda.gate_lower_bound", "ssm.conv_kernel",
                          "attention.key_length_mla", "attention.head_count_kv"}) {
    target_.metadata = whole_;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == prefix + key; });
    expect_refused("key \"" + prefix + key + "\" is missing");
  }
  expect_refused_with({prefix + "kda.safe_gate", Type::boolean, false}, "decays have a floor here");
  expect_refused_with({prefix + "kda.gate_lower_bound", Type::f32, 0.0}, "it must be below 0");
  expect_refused_with({prefix + "rope.scaling.type", Type::string, std::string("yarn")},
                      "of which llama.cpp here scales no scores");
  expect_refused_with({prefix + "rope.dimension_sections", Type::i32s, List{2, 1, 1, 0}},
                      "stands in files of models of pictures");
  expect_refused_with({prefix + "swiglu_clamp_exp", Type::f32s, std::vector<double>{0, 7, 0}},
                      "lists limits of experts, which are not supported");
  expect_refused_with({prefix + "expert_shared_feed_forward_length", Type::u32, int64_t{64}},
                      "shared experts are as wide as the others, so only 32 is supported");
}

TEST_F(GgufLing3, WhyOwn) {
  const auto expect_own_of = [](const ModelConfig& config, const char* reason) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, gguf_form_of(config).why_own);
  };
  const ModelConfig ling = small_ling();
  EXPECT_EQ(gguf_form_of(ling).why_own, "");
  ModelConfig c = ling;
  c.linear.decay_floor = 0;
  expect_own_of(c,
                "Ling 3.0 (\"bailingmoe3\") comes nearest, but decays of its linear attention have "
                "no floor");
  c = ling;
  c.linear.key_heads = c.linear.value_heads = 3;
  expect_own_of(c, "its linear attention has 3 heads, its other attention 4");
  c = ling;
  c.head_gates = false;
  expect_own_of(c, "its attention has a gate for each number of a head");
  c = ling;
  c.rope_scaling = {
      .kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8, .score_mscale = 1};
  expect_own_of(c, "its YaRN scales scores");
}

}  // namespace
}  // namespace moe::test::gguf_ling3_test
