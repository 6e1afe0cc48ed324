// Files whose windows and heads are said layer by layer: MiMo's and Laguna's.
#include <cmath>

#include "hub/gguf_files.h"

namespace moe::test::gguf_windows_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::expect_back_from_folder;
using gguf_files::logits_of;
using Type = GgufEntry::Type;
using List = std::vector<int64_t>;
using Flags = std::vector<bool>;

class ListedWindows : public ChangedGguf {
 protected:
  // What the file is with one entry changed.
  void with(const GgufEntry& changed) {
    target_.metadata = whole_;
    set(changed);
  }
  void without(const std::string& key) {
    target_.metadata = whole_;
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == key; });
  }
  void expect_refused_with(const GgufEntry& changed, const char* reason) {
    with(changed);
    expect_refused(reason);
  }
  void expect_same() {
    write();
    EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
    EXPECT_EQ(logits_of(*open_model(folder_ / "b.gguf", {}).model), logits_of(*model_));
  }
  void begin(const ModelConfig& config) {
    model_ = drawn_model(config);
    start();
    whole_ = target_.metadata;
  }

  std::vector<GgufEntry> whole_;
};

TEST_F(ListedWindows, Mimo) {
  begin(mimo_config(moe_config("deepseek-v3")));
  const auto number = [&](const char* key) {
    return std::get<int64_t>(entry(std::string("mimo2.") + key).value);
  };
  EXPECT_EQ(number("attention.head_count"), 4);
  EXPECT_EQ(number("attention.key_length"), 16);
  EXPECT_EQ(number("attention.value_length"), 8);
  EXPECT_EQ(number("rope.dimension_count"), 8);
  EXPECT_EQ(number("attention.sliding_window"), 5);
  EXPECT_EQ(std::get<List>(entry("mimo2.attention.head_count_kv").value), (List{4, 2, 4}));
  EXPECT_EQ(std::get<Flags>(entry("mimo2.attention.sliding_window_pattern").value),
            (Flags{true, false, true}));
  EXPECT_EQ(std::get<double>(entry("mimo2.attention.value_scale").value), double{0.707f});
  EXPECT_EQ(std::get<double>(entry("mimo2.rope.freq_base_swa").value), 500);
  EXPECT_EQ(describe(file_->get("blk.0.attn_sinks.weight")), "f32 [4]");
  EXPECT_EQ(describe(file_->get("blk.0.attn_k.weight")), "f32 [64, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_k.weight")), "f32 [32, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_v.weight")), "f32 [16, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_output.weight")), "f32 [32, 32]");
  EXPECT_EQ(describe(file_->get("blk.0.ffn_gate.weight")), "f32 [96, 32]");
  for (const char* name : {"blk.1.attn_sinks.weight", "blk.0.ffn_gate_inp.weight"})
    EXPECT_FALSE(file_->contains(name)) << name;
  expect_back_from_folder(path_, folder_, *model_, "mimo_v2_flash");
}

// As the converter writes it: ones and zeros, with layers that predict further tokens.
TEST_F(ListedWindows, MimoOfTheConverter) {
  begin(mimo_config(moe_config("deepseek-v3")));
  set({"mimo2.block_count", Type::u32, int64_t{4}});
  set({"mimo2.nextn_predict_layers", Type::u32, int64_t{1}});
  set({"mimo2.attention.sliding_window_pattern", Type::i32s, List{1, 0, 1, 1}});
  set({"mimo2.attention.head_count_kv", Type::i32s, List{4, 2, 4, 4}});
  set({"mimo2.expert_group_count", Type::u32, int64_t{1}});
  set({"mimo2.expert_weights_norm", Type::boolean, true});
  std::erase_if(target_.metadata,
                [](const GgufEntry& e) { return e.key.ends_with("gating_func"); });
  expect_same();
}

// Later files have queries, keys and values of a layer in one tensor.
TEST_F(ListedWindows, MimoWithFusedAttention) {
  begin(mimo_config(moe_config("deepseek-v3")));
  std::vector<std::vector<float>> all(static_cast<size_t>(model_->config().layers));
  for (size_t i = 0; i < all.size(); ++i) {
    for (const char* part : {"q", "k", "v"}) {
      const std::string name = fmt::format("blk.{}.attn_{}.weight", i, part);
      const Tensor t = file_->get(name);
      all[i].insert(all[i].end(), t.as<float>(), t.as<float>() + t.numel());
      std::erase_if(tensors_, [&](const NamedTensor& each) { return each.name == name; });
    }
    tensors_.push_back(
        {fmt::format("blk.{}.attn_qkv.weight", i),
         Tensor(all[i].data(), DType::f32, {static_cast<int64_t>(all[i].size()) / 32, 32})});
  }
  expect_same();
}

TEST_F(ListedWindows, MimoRefuses) {
  begin(mimo_config(moe_config("deepseek-v3")));
  const std::string pattern = "mimo2.attention.sliding_window_pattern",
                    heads = "mimo2.attention.head_count_kv";
  for (const char* key : {"attention.sliding_window_pattern", "attention.key_length",
                          "attention.value_length", "expert_feed_forward_length"}) {
    without(std::string("mimo2.") + key);
    expect_refused("key \"mimo2." + std::string(key) + "\" is missing");
  }
  without("mimo2.attention.sliding_window");
  expect_refused("key \"mimo2.attention.sliding_window\" is missing");
  expect_refused_with({pattern, Type::booleans, Flags{true, true, true}},
                      "3 layers of 3 have a window; some have one and some none");
  expect_refused_with({pattern, Type::booleans, Flags{true, false}}, "lists 2 layers of 3");
  expect_refused_with({heads, Type::u32s, List{4, 2, 2}},
                      "has 2 at layer 2; layers of a kind are alike here");
  expect_refused_with({heads, Type::u32s, List{4, 0, 4}}, "has 0 at layer 1");
  expect_refused_with({"mimo2.rope.dimension_count_swa", Type::u32, int64_t{16}},
                      "in all layers as much of a head turns, so only 8 is supported");
  expect_refused_with({"mimo2.attention.value_scale", Type::f32, 0.0}, "it must be at least");
  expect_refused_with({"mimo2.expert_weights_scale", Type::f32, 2.5}, "so only 1 is supported");
  target_.metadata = whole_;
  std::erase_if(tensors_, [](const NamedTensor& t) { return t.name == "blk.2.attn_sinks.weight"; });
  expect_refused("1 layers of 3 have a tensor \"blk.{i}.attn_sinks.weight\"");
}

// What it multiplies by beside what follows from its factor would count in layers with a window
// too.
TEST_F(ListedWindows, MimoWithYarn) {
  ModelConfig c = mimo_config(moe_config("deepseek-v3"));
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                    .factor = 4,
                    .original_context = 8,
                    .attention_factor = 1 + 0.1f * std::log(4.0f)};
  begin(c);
  expect_same();
  expect_refused_with({"mimo2.rope.scaling.attn_factor", Type::f32, 1.5}, "its YaRN multiplies by");
}

TEST_F(ListedWindows, Laguna) {
  begin(laguna_config(moe_config("deepseek-v3")));
  const auto number = [&](const char* key) {
    return std::get<int64_t>(entry(std::string("laguna.") + key).value);
  };
  EXPECT_EQ(std::get<List>(entry("laguna.attention.head_count").value), (List{2, 4, 4}));
  EXPECT_EQ(number("attention.head_count_kv"), 2);
  EXPECT_EQ(number("rope.dimension_count"), 8);
  EXPECT_EQ(number("rope.dimension_count_swa"), 16);
  EXPECT_EQ(number("leading_dense_block_count"), 1);
  EXPECT_EQ(number("expert_shared_feed_forward_length"), 96);
  EXPECT_EQ(number("expert_gating_func"), 2);
  EXPECT_EQ(std::get<double>(entry("laguna.expert_weights_scale").value), 2.5);
  EXPECT_EQ(describe(file_->get("blk.0.attn_gate.weight")), "f32 [2, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_gate.weight")), "f32 [4, 32]");
  EXPECT_EQ(describe(file_->get("blk.1.attn_q_norm.weight")), "f32 [16]");
  expect_back_from_folder(path_, folder_, *model_, "laguna");
  // Where no list stands all layers but each fourth have a window.
  without("laguna.attention.sliding_window_pattern");
  set({"laguna.expert_shared_count", Type::u32, int64_t{1}});
  set({"laguna.attention.head_count_kv", Type::i32s, List{2, 2, 2}});
  expect_same();
  const std::string pattern = "laguna.attention.sliding_window_pattern",
                    base = "laguna.rope.freq_base_swa";
  without(base);
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").window_rope_theta, model_->config().rope_theta);
  expect_refused_with({pattern, Type::u32, int64_t{2}},
                      "has 4 at layer 2; layers of a kind are alike here");
  with({"laguna.attention.head_count", Type::u32s, List{4, 2, 2}});
  set({pattern, Type::booleans, Flags{true, false, false}});
  expect_refused("its first layer has a window, by which llama.cpp turns the others too");
  expect_refused_with({"laguna.attention.value_length", Type::u32, int64_t{8}},
                      "values are as wide as keys, so only 16 is supported");
  expect_refused_with({"laguna.expert_weights_norm", Type::boolean, false},
                      "are not divided by their sum");
  with({"laguna.rope.scaling.attn_factor", Type::f32, 1.25});
  write();
  EXPECT_NEAR(gguf_config(folder_ / "b.gguf").rope_scaling.attention_factor,
              1.25f * (1 + 0.1f * std::log(4.0f)), 1e-6f);
}

// Its converter says of layers with a window what it finds, also where a model has none.
TEST_F(ListedWindows, LagunaWithoutWindows) {
  for (const auto& [row, config] : gguf_configs())
    if (row == "laguna" && config.attention_window == 0) begin(config);
  ASSERT_NE(model_, nullptr);
  EXPECT_EQ(describe(file_->get("blk.1.attn_gate.weight")), "f32 [64, 32]");
  EXPECT_EQ(std::get<int64_t>(entry("laguna.attention.head_count").value), 4);
  for (const GgufEntry& e : target_.metadata)
    EXPECT_TRUE(e.key.find("sliding") == std::string::npos && !e.key.ends_with("_swa")) << e.key;
  set({"laguna.attention.head_count", Type::i32s, List{4, 4, 4}});
  set({"laguna.rope.dimension_count_swa", Type::u32, int64_t{16}});
  set({"laguna.rope.freq_base_swa", Type::f32, 500.0});
  expect_same();
  expect_back_from_folder(folder_ / "b.gguf", folder_, *model_, "laguna");
  expect_refused_with({"laguna.attention.head_count", Type::u32s, List{4, 2, 4}},
                      "has 2 at layer 1; layers of a kind are alike here");
}

void expect_own_for(const ModelConfig& config, const char* reason) {
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, reason, gguf_form_of(config).why_own);
}

TEST(GgufListedWindows, WhyMimoIsOwn) {
  const ModelConfig mimo = mimo_config(moe_config("deepseek-v3"));
  EXPECT_EQ(gguf_form_of(mimo).why_own, "");
  ModelConfig c = mimo;
  c.attention_bias = true;
  expect_own_for(c, "MiMo-V2 (\"mimo2\") comes nearest, but queries, keys and values have biases");
  c = mimo;
  c.window_layers = {0, 1, 2};
  expect_own_for(c, "all of its layers have a window");
  c = mimo;
  c.window_rotary_width = 16;
  expect_own_for(c,
                 "MiMo-V2 (\"mimo2\") comes nearest, but layers with a window turn another part");
  c = mimo;
  c.routing.routed_scale = 2;
  expect_own_for(c, "scales its weights by 2");
  c = mimo;
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8};
  expect_own_for(c, "its YaRN multiplies by 1, not 1.138");
  c.rope_scaling.attention_factor = 1 + 0.1f * std::log(4.0f);
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.window_rope_theta = 0;
  expect_own_for(c, "layers with a window turn by scaled frequencies");
}

TEST(GgufListedWindows, WhyLagunaIsOwn) {
  const ModelConfig laguna = laguna_config(moe_config("deepseek-v3"));
  EXPECT_EQ(gguf_form_of(laguna).why_own, "");
  ModelConfig c = laguna;
  c.attention_bias = true;
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c.attention_out_bias = true;
  expect_own_for(
      c, "Laguna (\"laguna\") comes nearest, but the projection after attention has a bias");
  c = laguna;
  c.gate_softplus = false;
  expect_own_for(c, "gates of its attention are sigmoids");
  c = laguna;
  c.window_layers = {0, 1};
  expect_own_for(c, "its first layer has a window");
  c.window_rotary_width = 8;
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  c = laguna;
  c.shared_experts = c.shared_width = 0;
  expect_own_for(c, "it has no shared expert");
}

}  // namespace
}  // namespace moe::test::gguf_windows_test
