// Llama 4 in llama.cpp's form: what its converter leaves to the graph and writes in other ways, and
// which models the numbers in llama.cpp's code leave to our own form.
#include "hub/convert.h"
#include "hub/gguf_files.h"
#include "support/param_named.h"

namespace moe::test::gguf_llama4_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::logits_of;

class GgufLlama4 : public ChangedGguf {
 protected:
  GgufLlama4() {
    model_ = drawn_model(chunked_config());
    start();
  }
  void leave_out(const std::string& key) {
    const size_t before = target_.metadata.size();
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == "llama4." + key; });
    EXPECT_EQ(target_.metadata.size() + 1, before) << key;
  }
};

TEST_F(GgufLlama4, KeysAndTensors) {
  EXPECT_EQ(std::get<std::string>(entry("general.architecture").value), "llama4");
  for (const auto& [key, x] : {std::pair{"interleave_moe_layer_step", 2},
                               {"expert_count", 4},
                               {"expert_used_count", 2},
                               {"expert_feed_forward_length", 32},
                               {"feed_forward_length", 64},
                               {"attention.key_length", 16},
                               {"rope.dimension_count", 16}})
    EXPECT_EQ(std::get<int64_t>(entry(std::string("llama4.") + key).value), x) << key;
  EXPECT_EQ(describe(file_->get("blk.0.ffn_gate.weight")), "f32 [64, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.ffn_gate_inp.weight")), "f32 [4, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.ffn_gate_exps.weight")), "f32 [4, 32, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.ffn_down_shexp.weight")), "f32 [32, 32]");
  EXPECT_EQ(describe(file_->get("rope_freqs.weight")), "f32 [8]");
  EXPECT_FALSE(file_->contains("blk.0.attn_q_norm.weight"));
  // Queries and keys lie in pairs also where nothing turns, as Llama 4's folders have them.
  const Tensor there = file_->get("blk.3.attn_q.weight"),
               here = param_named(*model_, "layers.3.attn.q.weight")->value;
  for (const auto& [theirs, ours] : {std::pair{0, 0}, {1, 8}, {2, 1}, {15, 15}, {17, 24}})
    EXPECT_EQ(values(there.slice_rows(theirs, theirs + 1)), values(here.slice_rows(ours, ours + 1)))
        << theirs;
}

// Its converter writes no window, no kind of scores and no tensor of norms.
TEST_F(GgufLlama4, AsTheConverterWritesIt) {
  leave_out("attention.sliding_window");
  leave_out("expert_gating_func");
  write();
  for (const bool trained : {true, false}) {
    const LoadedModel loaded =
        trained ? load_model(folder_ / "b.gguf") : open_model(folder_ / "b.gguf", {});
    EXPECT_EQ(logits_of(*loaded.model), logits_of(*model_));
    const ModelConfig& c = loaded.model->config();
    EXPECT_TRUE(c.window_chunks && c.weigh_inputs && c.qk_norm_turned);
    EXPECT_EQ(c.qk_norm, QkNorm::bare);
    EXPECT_EQ(c.attention(2).chunk, 8192);
    EXPECT_EQ(c.attention(3).chunk, 0);
    EXPECT_TRUE(c.attention(3).queries_grow);
    EXPECT_EQ(c.moe_layers, (std::vector<int64_t>{1, 3, 5}));
    EXPECT_EQ(c.routing.stages, model_->config().routing.stages);
    EXPECT_EQ(c.routing.coef.balance, 0.002f);
  }
  set({"llama4.attention.sliding_window_pattern", GgufEntry::Type::u32, int64_t{4}});
  write();
  EXPECT_NO_THROW(open_model(folder_ / "b.gguf", {}));
}

// The folder of the family, and from there the same file again.
TEST_F(GgufLlama4, ThereAndBackByAFolder) {
  LoadedModel bound = open_model(path_, {});
  const std::string folder = folder_ / "folder";
  std::filesystem::create_directory(folder);
  convert_model(bound, path_, folder, {});
  LoadedModel of_folder = open_model(folder, {});
  EXPECT_EQ(of_folder.model->config().model_type, "llama4_text");
  EXPECT_EQ(logits_of(*of_folder.model), logits_of(*model_));
  EXPECT_EQ(convert_model(of_folder, folder, folder_ / "c.gguf", {}).why_own, "");
  EXPECT_EQ(logits_of(*load_model(folder_ / "c.gguf").model), logits_of(*model_));
}

// Scout's scaling jumps from one factor to the other.
TEST_F(GgufLlama4, FactorsThatJump) {
  const float jump[] = {1, 1, 1, 1, 1, 16, 16, 16};
  std::ranges::find(tensors_, "rope_freqs.weight", &NamedTensor::name)->value =
      Tensor(const_cast<float*>(jump), DType::f32, {8});
  write();
  const RopeScaling s = gguf_config(folder_ / "b.gguf").rope_scaling;
  EXPECT_EQ(s.factor, 16);
  EXPECT_EQ(s.high_freq_factor, 1);  // a blend would show
  const std::vector<float> made = llama3_factors(s, 500000, 16);
  EXPECT_EQ(made, (std::vector<float>(std::begin(jump), std::end(jump))));
  // Scout's heads.
  const RopeScaling scout{.kind = RopeScaling::Kind::llama3,
                          .factor = 16,
                          .original_context = 8192,
                          .high_freq_factor = 1};
  int jumps = 0;
  for (const float f : llama3_factors(scout, 500000, 128)) jumps += f == 16 ? 1 : 0;
  EXPECT_EQ(jumps, 29);  // 2 pi 500000^(c / 64) is over 8192 from c = 35 on
}

TEST_F(GgufLlama4, Refuses) {
  using Type = GgufEntry::Type;
  const std::vector<GgufEntry> whole = target_.metadata;
  for (const char* key : {"interleave_moe_layer_step", "expert_feed_forward_length",
                          "feed_forward_length", "rope.freq_base", "expert_used_count"}) {
    target_.metadata = whole;
    leave_out(key);
    expect_refused(fmt::format("key \"llama4.{}\" is missing", key));
  }
  const auto refused_with = [&](const GgufEntry& entry, const char* reason) {
    target_.metadata = whole;
    set(entry);
    expect_refused(reason);
  };
  refused_with({"llama4.expert_count", Type::u32, int64_t{0}}, "needs \"expert_count\"");
  refused_with({"llama4.attention.sliding_window", Type::u32, int64_t{0}},
               "llama.cpp cuts attention into chunks of so many tokens");
  refused_with({"llama4.interleave_moe_layer_step", Type::u32, int64_t{7}},
               "is 7, so that none of 6 layers routes");
  refused_with({"llama4.expert_gating_func", Type::u32, int64_t{1}}, "the router is sigmoids (2)");
  refused_with({"llama4.expert_weights_scale", Type::f32, 2.5}, "only 1 is supported");
  refused_with({"llama4.expert_weights_norm", Type::boolean, true},
               "llama.cpp's graph of Llama 4 does the other");
  refused_with({"llama4.attention.chunk_size", Type::u32, int64_t{8192}}, "is not known here");
}

TEST_F(GgufLlama4, WhyOwn) {
  const auto own = [](const char* reason, auto change) {
    ModelConfig c = chunked_config();
    change(c);
    const auto [architecture, why_own] = gguf_form_of(c);
    EXPECT_EQ(architecture, &own_gguf_architecture());
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, why_own);
  };
  own("Llama 4 (\"llama4\") comes nearest, but its attention is cut into chunks of 64 tokens, not "
      "of 8192",
      [](ModelConfig& c) { c.attention_window = 64; });
  own("its queries do not grow by 0.1 each 8192 tokens where nothing turns",
      [](ModelConfig& c) { c.query_growth = {}; });
  own("its queries do not grow by 0.1", [](ModelConfig& c) { c.query_growth.context = 4096; });
  own("its queries and keys are not normalised, with 4 experts",
      [](ModelConfig& c) { c.qk_norm = QkNorm::none; });
  own("its queries and keys are normalised, with 128 experts",
      [](ModelConfig& c) { c.routing.experts = 128; });
  own("in layer 3 something turns", [](ModelConfig& c) { c.nope_layers.clear(); });
  own("layer 4 has no window", [](ModelConfig& c) { c.window_layers = {0, 1, 2, 5}; });
  own("layer 1 is dense", [](ModelConfig& c) { c.moe_layers = {0, 3}; });
  own("queries, keys and values have biases", [](ModelConfig& c) { c.attention_bias = true; });
}

}  // namespace
}  // namespace moe::test::gguf_llama4_test
