// Architectures of llama.cpp with LayerNorms: the keys and tensors that set them apart.
#include "hub/gguf_files.h"

namespace moe::test::gguf_layer_norms_test {
namespace {

using gguf_files::ChangedGguf;
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

}  // namespace
}  // namespace moe::test::gguf_layer_norms_test
