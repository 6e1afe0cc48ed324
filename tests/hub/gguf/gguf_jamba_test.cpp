// Jamba in llama.cpp's form: its keys and tensors, what its converter writes of one without
// experts, and what is refused.
#include <algorithm>

#include "hub/gguf_files.h"

namespace moe::test::gguf_jamba_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::expect_back_from_folder;
using gguf_files::logits_of;
using Type = GgufEntry::Type;
using List = std::vector<int64_t>;

class GgufJamba : public ChangedGguf {
 protected:
  void begin(const ModelConfig& c) {
    tensors_.clear();
    model_ = drawn_model(c);
    start();
  }
  void leave_out(const std::string& key) {
    EXPECT_EQ(std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == key; }),
              1u);
  }
};

TEST_F(GgufJamba, KeysAndTensors) {
  begin(jamba_config(moe_config("olmoe")));
  EXPECT_EQ(std::get<List>(entry("jamba.attention.head_count_kv").value), (List{0, 2, 0}));
  for (const auto& [key, x] : {std::pair{"ssm.conv_kernel", 4},
                               {"ssm.inner_size", 64},
                               {"ssm.state_size", 16},
                               {"ssm.time_step_rank", 8},
                               {"feed_forward_length", 32},
                               {"expert_count", 4},
                               {"expert_used_count", 2}})
    EXPECT_EQ(std::get<int64_t>(entry(std::string("jamba.") + key).value), x) << key;
  for (const GgufEntry& e : target_.metadata) EXPECT_NE(e.key, "jamba.ssm.group_count");

  const auto param = [&](ParamKind kind, bool bias = false) {
    return model_->find(Part::attention, kind, 2, bias)->value;
  };
  const Tensor in = file_->get("blk.2.ssm_in.weight");
  EXPECT_EQ(describe(in), "f32 [128, 32]");
  EXPECT_EQ(values(in.slice_rows(0, 64)), values(param(ParamKind::scan_x)));
  EXPECT_EQ(values(in.slice_rows(64, 128)), values(param(ParamKind::scan_z)));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_x.weight")), "f32 [40, 64]");
  EXPECT_EQ(describe(file_->get("blk.2.ssm_dt.weight")), "f32 [64, 8]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_dt.bias")), values(param(ParamKind::scan_dt_bias, true)));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_a")), "f32 [64, 16]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_a")), std::vector<double>(64 * 16, -1));
  EXPECT_EQ(describe(file_->get("blk.2.ssm_d")), "f32 [64]");
  EXPECT_EQ(describe(file_->get("blk.2.ssm_conv1d.weight")), "f32 [64, 4]");
  EXPECT_EQ(describe(file_->get("blk.2.ssm_conv1d.bias")), "f32 [64]");
  EXPECT_EQ(values(file_->get("blk.2.ssm_dt_norm.weight")),
            values(param(ParamKind::scan_step_norm)));
  EXPECT_EQ(values(file_->get("blk.2.ssm_b_norm.weight")), values(param(ParamKind::scan_b_norm)));
  EXPECT_EQ(values(file_->get("blk.2.ssm_c_norm.weight")), values(param(ParamKind::scan_c_norm)));
  EXPECT_TRUE(file_->contains("blk.1.ffn_gate_inp.weight"));
  EXPECT_FALSE(file_->contains("blk.0.ffn_gate_inp.weight"));
  expect_back_from_folder(path_, folder_, *model_, "jamba");
}

// Its converter says nothing of what would turn.
TEST_F(GgufJamba, AsTheConverterWritesIt) {
  begin(jamba_config(moe_config("olmoe")));
  for (const char* key :
       {"attention.key_length", "attention.value_length", "rope.freq_base", "rope.dimension_count"})
    leave_out(std::string("jamba.") + key);
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));

  // One expert, which no router chooses, is an FFN.
  begin(jamba_config(dense_config()));
  for (const GgufEntry& e : target_.metadata) EXPECT_NE(e.key, "jamba.expert_count");
  set({"jamba.expert_count", Type::u32, int64_t{1}});
  for (const int64_t used : {1, 2}) {
    set({"jamba.expert_used_count", Type::u32, used});
    write();
    const LoadedModel loaded = load_model(folder_ / "b.gguf");
    EXPECT_EQ(loaded.model->config().moe_layer_count(), 0);
    EXPECT_EQ(logits_of(*loaded.model), logits_of(*model_));
  }
  expect_back_from_folder(path_, folder_, *model_, "jamba");
}

TEST_F(GgufJamba, WhatIsRefused) {
  begin(jamba_config(moe_config("olmoe")));
  const std::vector<GgufEntry> whole = target_.metadata;
  for (const char* key :
       {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"}) {
    target_.metadata = whole;
    leave_out(std::string("jamba.") + key);
    expect_refused(std::string("key \"jamba.") + key + "\" is missing");
  }
  target_.metadata = whole;
  set({"jamba.ssm.group_count", Type::u32, int64_t{1}});
  expect_refused("key \"jamba.ssm.group_count\" is not known here");
  target_.metadata = whole;
  std::erase_if(tensors_, [](const NamedTensor& t) { return t.name == "blk.2.ssm_b_norm.weight"; });
  expect_refused("there is no tensor \"blk.2.ssm_b_norm.weight\"");
}

TEST(GgufJambaRows, WhyOwn) {
  const auto expect_own = [](const ModelConfig& c, const char* reason) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, gguf_form_of(c).why_own);
  };
  ModelConfig c = jamba_config(moe_config("olmoe"));
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.scan.conv_bias = false;
  expect_own(
      c, "Jamba (\"jamba\") comes nearest, but the convolution of its state spaces has no bias");
  c = jamba_config(moe_config("olmoe"));
  c.scan.norm = false;
  expect_own(c, "what steps of its state spaces are made of is not normalised");
  c = jamba_config(moe_config("olmoe"));
  c.scan.heads = 96;
  expect_own(c, "its state spaces are not twice as wide as the model");
  c = jamba_config(moe_config("olmoe"));
  c.model_type.clear();
  EXPECT_NE(gguf_form_of(c).why_own, "");
}

}  // namespace
}  // namespace moe::test::gguf_jamba_test
