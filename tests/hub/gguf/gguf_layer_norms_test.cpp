// Architectures of llama.cpp with LayerNorms: the keys and tensors that set them apart.
#include "hub/gguf_files.h"

namespace moe::test::gguf_layer_norms_test {
namespace {

using gguf_files::ChangedGguf;
using gguf_files::drawn_model;
using gguf_files::logits_of;

// No norm has a tensor, and a file need not say what queries, keys and values are held within.
TEST_F(ChangedGguf, Olmo) {
  using Type = GgufEntry::Type;
  start("olmo");
  const std::string clamp = "olmo.attention.clamp_kqv";
  for (const NamedTensor& t : tensors_) EXPECT_EQ(t.name.find("norm"), std::string::npos) << t.name;
  EXPECT_EQ(std::get<double>(entry(clamp).value), 1.5);
  std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == clamp; });
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").qkv_clip, 0);
  EXPECT_NE(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  set({"olmo.attention.layer_norm_rms_epsilon", Type::f32, 1e-6});  // which its graph does not read
  write();
  EXPECT_EQ(gguf_config(folder_ / "b.gguf").norm_eps, 1e-5f);
}

// A key says whether attention and FFN stand beside one another; a file need not say its rotary
// base.
TEST_F(ChangedGguf, GptNeoX) {
  using Type = GgufEntry::Type;
  for (const bool beside : {true, false}) {
    model_.reset();
    for (const auto& [row, config] : gguf_configs())
      if (row == "gptneox" && (config.norm_placement == NormPlacement::beside_each) == beside)
        model_ = drawn_model(config);
    ASSERT_NE(model_, nullptr);
    tensors_.clear();
    start();
    const std::string parallel = "gptneox.use_parallel_residual", base = "gptneox.rope.freq_base";
    EXPECT_EQ(std::get<bool>(entry(parallel).value), beside);
    EXPECT_EQ(describe(file_->get("blk.1.attn_qkv.bias")), "f32 [96]");
    set({base, Type::f32, 10000.0});
    write();
    const std::vector<double> want = logits_of(*load_model(folder_ / "b.gguf").model);
    EXPECT_NE(want, logits_of(*model_));
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == base; });
    write();
    EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), want);
    set({parallel, Type::boolean, !beside});
    write();
    EXPECT_EQ(gguf_config(folder_ / "b.gguf").norm_placement,
              beside ? NormPlacement::pre : NormPlacement::beside_each);
    EXPECT_NE(logits_of(*load_model(folder_ / "b.gguf").model), want);
    std::erase_if(target_.metadata, [&](const GgufEntry& e) { return e.key == parallel; });
    expect_refused("key \"" + parallel + "\" is missing");
  }
}

// Older files have queries, keys and values in one tensor.
TEST_F(ChangedGguf, Phi2) {
  start("phi2");
  EXPECT_TRUE(file_->contains("output.bias"));
  EXPECT_FALSE(file_->contains("blk.1.ffn_norm.weight"));
  std::vector<std::vector<float>> joined;
  joined.reserve(64);
  for (int64_t layer = 0; layer < model_->config().layers; ++layer)
    for (const char* what : {"weight", "bias"}) {
      std::vector<float>& all = joined.emplace_back();
      int64_t cols = 0;
      for (const char* part : {"q", "k", "v"}) {
        const std::string name = fmt::format("blk.{}.attn_{}.{}", layer, part, what);
        const Tensor t = file_->get(name);
        all.insert(all.end(), t.as<float>(), t.as<float>() + t.numel());
        cols = t.rank == 2 ? t.cols() : 0;
        std::erase_if(tensors_, [&](const NamedTensor& other) { return other.name == name; });
      }
      const auto numbers = static_cast<int64_t>(all.size());
      tensors_.push_back({fmt::format("blk.{}.attn_qkv.{}", layer, what),
                          cols > 0 ? Tensor(all.data(), DType::f32, {numbers / cols, cols})
                                   : Tensor(all.data(), DType::f32, {numbers})});
    }
  write();
  EXPECT_EQ(logits_of(*load_model(folder_ / "b.gguf").model), logits_of(*model_));
  EXPECT_EQ(logits_of(*open_model(folder_ / "b.gguf", {}).model), logits_of(*model_));
  std::erase_if(tensors_, [](const NamedTensor& t) { return t.name == "output.bias"; });
  expect_refused("there is no tensor \"output.bias\"");
}

}  // namespace
}  // namespace moe::test::gguf_layer_norms_test
