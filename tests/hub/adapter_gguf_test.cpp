// Adapters in llama.cpp's form: what is saved is what is hung on again for every family, under the
// names of the model's own GGUF, and what belongs to no model is refused with file and tensor.
// llama.cpp itself reads them in tools/interop/smollm2_check.py.
#include "hub/adapter_gguf.h"

#include <cmath>

#include "hub/adapted.h"
#include "hub/configs.h"
#include "hub/gguf/gguf_architectures.h"
#include "hub/gguf/gguf_model.h"
#include "model/adapters.h"
#include "support/files.h"
#include "support/param_named.h"

namespace moe::test::adapter_gguf_test {
namespace {

// As llama.cpp runs it.
ModelConfig plain_olmoe() {
  ModelConfig c = small_olmoe();
  c.kv_heads = c.heads;
  EXPECT_EQ(gguf_form_of(c).why_own, "");
  return c;
}

TEST(GgufAdapter, EveryFamilyComesBackMerged) {
  for (const auto& [name, config] : every_small_config()) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    Adapted made(config);
    const std::string path = folder / "a.gguf";
    if (config.latent.present() && gguf_form_of(config).why_own.empty()) {
      EXPECT_FAILS(save_gguf_adapter(path, made.model, made.file), "llama.cpp knows no adapter of");
      continue;
    }
    save_gguf_adapter(path, made.model, made.file);
    EXPECT_TRUE(is_gguf_adapter(path));
    Model again(config);
    again.initialise(3);
    int64_t matrices = 0;
    for (const LowRank& low : made.file.matrices)
      matrices += low.base->value.rank == 3 ? low.base->value.shape[0] : 1;
    const AttachedAdapter report = attach_adapter(again, path, 1);
    EXPECT_EQ(report.matrices, matrices);
    EXPECT_EQ(report.whole, 0);
    // what hangs there is what was saved, the factor in B
    const AdapterFile on = adapter_on(again);
    EXPECT_EQ(on.matrices.size(), made.file.matrices.size());
    EXPECT_EQ(on.alpha, static_cast<double>(on.rank));
    merge_terms(again, 1);
    for (const LowRank& low : made.file.matrices)
      expect_near(param_named(again, low.base->name)->value, made.merged(low), 1e-6,
                  low.base->name);
  }
}

TEST(GgufAdapter, NamesAndShapesAreThoseOfLlamaCpp) {
  const TempFolder folder;
  Adapted made(plain_olmoe());
  save_gguf_adapter(folder / "a.gguf", made.model, made.file);
  const Gguf file = Gguf::open(folder / "a.gguf");
  const ModelConfig& c = made.model.config();
  EXPECT_EQ(file.text("general.type"), "adapter");
  EXPECT_EQ(file.text("general.architecture"), "olmoe");
  EXPECT_EQ(file.text("adapter.type"), "lora");
  EXPECT_EQ(file.number("adapter.lora.alpha"), 5);
  const auto shape = [&](const char* name) {
    const Tensor t = file.get(name);
    return std::vector<int64_t>(t.shape.begin(), t.shape.begin() + t.rank);
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape("blk.0.attn_q.weight.lora_a"), (Shape{2, c.width}));
  EXPECT_EQ(shape("blk.0.attn_q.weight.lora_b"), (Shape{c.heads * c.head_width, 2}));
  EXPECT_EQ(shape("blk.0.ffn_down_exps.weight.lora_a"),
            (Shape{c.routing.experts, 2, c.expert_width}));
  EXPECT_EQ(shape("blk.0.ffn_down_exps.weight.lora_b"), (Shape{c.routing.experts, c.width, 2}));
}

TEST(GgufAdapter, CannotSayRowsOfTokens) {
  const TempFolder folder;
  Adapted made(plain_olmoe());
  Param* table = param_named(made.model, "embed.weight");
  made.file.tokens.push_back(
      {table, draw(made.memory, DType::f32, {1, table->value.cols()}, 7), {3}});
  EXPECT_FAILS(
      save_gguf_adapter(folder / "a.gguf", made.model, made.file),
      "brings rows of tokens (1 of embed.weight), which a GGUF adapter cannot say; merge it");
}

class RefusedGguf : public testing::Test {
 protected:
  RefusedGguf() : made_(plain_olmoe()) {
    save_gguf_adapter(path_, made_.model, made_.file);
    const Gguf file = Gguf::open(path_);
    entries_ = {{"general.architecture", GgufEntry::Type::string, "olmoe"},
                {"general.type", GgufEntry::Type::string, "adapter"},
                {"adapter.type", GgufEntry::Type::string, "lora"},
                {"adapter.lora.alpha", GgufEntry::Type::f32, 5.0}};
  }
  void expect(const std::string& part) {
    Model model(plain_olmoe());
    EXPECT_FAILS(attach_adapter(model, path_, 1), part);
  }
  // The file with another entry, or with a tensor left out, renamed or replaced.
  void expect_entry(size_t which, const GgufValue& value, const std::string& part) {
    std::vector<GgufEntry> entries = entries_;
    entries[which].value = value;
    write(entries, "", "", {});
    expect(part);
  }
  void expect_tensor(const std::string& name, const std::string& becomes, const Tensor& value,
                     const std::string& part) {
    write(entries_, name, becomes, value);
    expect(part);
  }

 private:
  void write(const std::vector<GgufEntry>& entries, const std::string& name,
             const std::string& becomes, const Tensor& value) {
    save_gguf_adapter(path_, made_.model, made_.file);
    const std::string out = folder_ / "b.gguf";
    {
      const Gguf file = Gguf::open(path_);
      std::vector<GgufItem> items;
      for (const NamedTensor& t : file.tensors()) {
        const bool other = t.name == name;
        if (other && becomes.empty()) continue;
        const Tensor of = other && !value.empty() ? value : t.value;
        items.push_back({other ? becomes : t.name, DType::f32,
                         std::vector<int64_t>(of.shape.begin(), of.shape.begin() + of.rank),
                         [of](int64_t part) { return of.rank == 3 ? of.at(part) : of; }});
      }
      write_gguf(out, entries, items);
    }
    std::filesystem::rename(out, path_);
  }

  TempFolder folder_;
  std::string path_ = folder_ / "a.gguf";
  Adapted made_;
  std::vector<GgufEntry> entries_;
};

TEST_F(RefusedGguf, OtherKindsOfFiles) {
  expect_entry(0, "llama", "the adapter is of \"llama\", the model's architecture is \"olmoe\"");
  expect_entry(1, "model", "this is no adapter");
  expect_entry(2, "ia3", "an adapter of the type \"ia3\"; only \"lora\" is known here");
  expect_entry(3, std::nan(""), "adapter.lora.alpha");
}

TEST_F(RefusedGguf, TensorsThatAreNotTheModels) {
  const std::string a = "blk.0.attn_q.weight.lora_a", b = "blk.0.attn_q.weight.lora_b";
  const int64_t width = plain_olmoe().width;
  Arena arena;
  expect_tensor(a, "", {}, "\"" + b + "\" has no \"" + a + "\" beside it");
  expect_tensor(b, "", {}, "\"" + a + "\" has no \"" + b + "\" beside it");
  expect_tensor(a, "blk.7.attn_q.weight.lora_a", {}, "belongs to no matrix of this model");
  expect_tensor(a, "blk.0.attn_q.weight", {}, "belongs to no matrix of this model");
  expect_tensor(a, a, draw(arena, DType::f32, {2, width + 1}, 1),
                "must be [2, " + std::to_string(width) + "]");
  const Tensor bad = draw(arena, DType::f32, {2, width}, 1);
  bad.as<float>()[5] = std::nanf("");
  expect_tensor(a, a, bad, "not finite");
}

TEST_F(RefusedGguf, WhatTheFormCannotSay) {
  const TempFolder folder;
  Adapted made(plain_olmoe());
  for (Param* p : made.model.params())
    if (p->name.find(".ffn.router.") != std::string::npos) made.file.whole.push_back(p);
  EXPECT_FAILS(save_gguf_adapter(folder / "a.gguf", made.model, made.file),
               "whole, which a GGUF adapter cannot say; merge it instead");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.gguf"));
}

}  // namespace
}  // namespace moe::test::adapter_gguf_test
