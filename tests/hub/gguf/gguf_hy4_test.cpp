// Files of Hy4: residual streams, indexers that turn neighbours behind the rows that do not turn.
#include "hub/gguf_files.h"

namespace moe::test::gguf_hy4_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::expect_back_from_folder;
using gguf_files::logits_of;
using Type = GgufEntry::Type;

ModelConfig small_hy4() {
  ModelConfig latent = grouped_config();
  make_latent(latent);
  return hy4_config(latent);
}

class GgufHy4 : public ChangedGguf {
 protected:
  void begin() {
    model_ = drawn_model(small_hy4());
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

TEST_F(GgufHy4, KeysAndTensors) {
  begin();
  for (const auto& [key, x] : {std::pair{"hyper_connection.count", 2},
                               {"attention.indexer.top_k", 6},
                               {"attention.indexer.head_count", 3},
                               {"attention.indexer.key_length", 16},
                               {"attention.q_lora_rank", 32},
                               {"attention.head_count_kv", 1},
                               {"leading_dense_block_count", 1},
                               {"expert_shared_count", 1},
                               {"expert_gating_func", 2}})
    EXPECT_EQ(std::get<int64_t>(entry(std::string("hy_v4.") + key).value), x) << key;
  EXPECT_EQ(std::get<double>(entry("hy_v4.hyper_connection.magnitude").value), 1.5);
  EXPECT_EQ(std::get<double>(entry("hy_v4.hyper_connection.epsilon").value), double{1e-5f});
  EXPECT_EQ(std::get<std::vector<double>>(entry("hy_v4.swiglu_clamp_exp").value),
            std::vector<double>(3, 10));
  EXPECT_EQ(std::get<std::vector<bool>>(entry("hy_v4.attention.indexer.types").value),
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(describe(file_->get("blk.0.hc_attn_fn.weight")), "f32 [4, 64]");
  EXPECT_EQ(describe(file_->get("blk.0.hc_ffn_base.weight")), "f32 [4]");
  EXPECT_EQ(describe(file_->get("blk.0.hc_ffn_scale.weight")), "f32 [2]");
  EXPECT_EQ(describe(file_->get("output_hc_fn.weight")), "f32 [2, 64]");
  EXPECT_EQ(describe(file_->get("output_hc_scale.weight")), "f32 [1]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_sinks.weight")), "f32 [4]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_gate.weight")), "f32 [64, 32]");
  EXPECT_TRUE(file_->contains("output.weight"));
  EXPECT_FALSE(file_->contains("blk.1.indexer.attn_k.weight"));
  const Tensor file = file_->get("blk.2.indexer.attn_k.weight"),
               here = model_->find(Part::attention, ParamKind::index_k, 2)->value;
  for (const auto& [theirs, ours] :
       {std::pair{0, 8}, {7, 15}, {8, 0}, {9, 4}, {10, 1}, {14, 3}, {15, 7}})
    EXPECT_EQ(values(file.slice_rows(theirs, theirs + 1)), values(here.slice_rows(ours, ours + 1)))
        << theirs;
  expect_back_from_folder(path_, folder_, *model_, "hy_v4");
}

TEST_F(GgufHy4, OneLimitIsThatOfAllLayers) {
  begin();
  set({"hy_v4.swiglu_clamp_exp", Type::f32, 10.0});
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  EXPECT_EQ(logits_of(*open_model(folder_ / "b.gguf", {}).model), logits_of(*model_));
}

TEST_F(GgufHy4, Refuses) {
  begin();
  const std::string prefix = "hy_v4.";
  for (const char* key :
       {"hyper_connection.count", "hyper_connection.magnitude", "hyper_connection.epsilon",
        "swiglu_clamp_exp", "attention.indexer.top_k", "attention.key_length_mla"}) {
    target_.metadata = whole_;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == prefix + key; });
    expect_refused("key \"" + prefix + key + "\" is missing");
  }
  expect_refused_with({prefix + "swiglu_clamp_exp", Type::f32, 7.0}, "so only 10 is supported");
  expect_refused_with({prefix + "swiglu_clamp_exp", Type::f32s, std::vector<double>{10, 0, 10}},
                      "lists other limits than 10");
  expect_refused_with({prefix + "swiglu_clamp_exp", Type::f32s, std::vector<double>{10, 10}},
                      "lists 2 layers of 3");
  expect_refused_with({prefix + "hyper_connection.sinkhorn_iterations", Type::u32, int64_t{20}},
                      "is not known here");
  expect_refused_with({prefix + "rope.scaling.type", Type::string, std::string("yarn")},
                      "of which llama.cpp here scales no scores");
}

TEST_F(GgufHy4, WhyOwn) {
  const auto expect_own_of = [](const ModelConfig& config, const char* reason) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, gguf_form_of(config).why_own);
  };
  const ModelConfig hy4 = small_hy4();
  EXPECT_EQ(gguf_form_of(hy4).why_own, "");
  ModelConfig c = hy4;
  c.sparse.norm_eps = 2e-6f;
  expect_own_of(c,
                "Hy4 (\"hy_v4\") comes nearest, but norms of its indexers have an epsilon of their "
                "own");
  c = hy4;
  c.hyper.mixes = true;
  expect_own_of(c, "its residual streams are mixed");
  c = hy4;
  c.experts_held = false;
  expect_own_of(c, "its routed experts are not held");
  c = hy4;
  c.latent.query_width = 0;
  expect_own_of(c, "its queries are made of the token");
  c = hy4;
  c.attention_sinks = false;
  expect_own_of(c, "its attention has no sinks");
}

}  // namespace
}  // namespace moe::test::gguf_hy4_test
