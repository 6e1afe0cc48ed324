// Weights that lie in a file: which are views of it, which are copies, and that every layout gives
// the numbers that a load for training gives.
#include "hub/tensor_map.h"

#include "hub/configs.h"
#include "hub/saved_folder.h"
#include "support/check.h"
#include "support/files.h"
#include "support/param_named.h"

namespace moe::test::tensor_map_test {
namespace {

float number(const Tensor& row, int64_t i) {
  switch (row.dtype) {
    case DType::f32: return static_cast<const float*>(row.data)[i];
    case DType::bf16: return to_f32(static_cast<const bf16*>(row.data)[i]);
    default: return f16_to_f32(static_cast<const uint16_t*>(row.data)[i]);
  }
}

// The numbers of a parameter, wherever its experts lie.
std::vector<float> numbers(const Param& param) {
  std::vector<float> out;
  const int64_t count = param.value.rank == 3 ? param.value.shape[0] : 1;
  for (int64_t e = 0; e < count; ++e) {
    const Tensor matrix = param.value.rank == 3 ? param.expert(e) : param.value;
    for (int64_t i = 0; i < matrix.numel(); ++i) out.push_back(number(matrix, i));
  }
  return out;
}

bool is_small(const std::string& name) {
  for (const char* part : {"norm", ".bias", ".router.", "shared_gate", "positions", "threshold",
                           "scan.dt", "scan.conv", "scan.a_log", "scan.skip", "linear.b.",
                           "linear.conv", "linear.dt", "linear.a_log"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

class TensorMap : public ::testing::Test {
 protected:
  // Writes `model` under these names; `half` in f16, which only other programs write.
  Safetensors written(const TensorNames& names, Model& model, DType dtype) {
    write_safetensors(
        folder_ / "m.safetensors",
        items_of(map_tensors(names, model), dtype == DType::f16 ? DType::f32 : dtype, true));
    if (dtype != DType::f16) return Safetensors::open(folder_ / "m.safetensors");
    const Safetensors wide = Safetensors::open(folder_ / "m.safetensors");
    std::vector<std::vector<uint16_t>> halves;
    std::vector<SafetensorsItem> items;
    for (const NamedTensor& t : wide.tensors()) {
      std::vector<uint16_t>& half = halves.emplace_back();
      for (int64_t i = 0; i < t.value.numel(); ++i)
        half.push_back(f32_to_f16(t.value.as<float>()[i]));
      Tensor value = t.value;
      value.data = half.data();
      value.dtype = DType::f16;
      value.row_bytes /= 2;
      items.push_back({.name = t.name, .value = value, .dtype = DType::f16});
    }
    write_safetensors(folder_ / "h.safetensors", items);
    return Safetensors::open(folder_ / "h.safetensors");
  }
  void expect_bound(const TensorNames& names, const ModelConfig& config, DType dtype) {
    const auto model = drawn_model(config);
    const Safetensors file = written(names, *model, dtype);
    Model trained(config), bound(config, Storage::bound);
    bind_tensors(map_tensors(names, trained), file, trained, LoadFor::training);
    bind_tensors(map_tensors(names, bound), file, bound, LoadFor::inference);
    for (size_t p = 0; p < model->params().size(); ++p) {
      const Param &a = *bound.params()[p], &b = *trained.params()[p];
      const bool f32 = is_small(a.name) || dtype == DType::f32;
      EXPECT_EQ(a.value.dtype, f32 ? DType::f32 : dtype) << a.name;
      EXPECT_EQ(numbers(a), numbers(b)) << a.name;
      if (dtype == DType::f32) EXPECT_EQ(numbers(a), numbers(*model->params()[p])) << a.name;
      EXPECT_TRUE(a.is_bound());
    }
    // What is bound is written as it was read.
    const std::string again = folder_ / "again.safetensors";
    write_safetensors(again, items_of(map_tensors(names, bound), DType::f32, true));
    const Safetensors copy = Safetensors::open(again);
    for (const NamedTensor& t : file.tensors())
      for (int64_t i = 0; i < t.value.numel(); ++i)
        ASSERT_EQ(number(copy.get(t.name), i), number(t.value, i)) << t.name << " number " << i;
  }

  TempFolder folder_;
};

TEST_F(TensorMap, EveryKindInEveryDtype) {
  for (const NamedConfig& named : small_configs())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(named.name + " " + std::string(name_of(dtype)));
      expect_bound(*architecture_of(named.config).names, named.config, dtype);
    }
}

// The layouts that no architecture of small_configs has.
constexpr NameRow kTurned[] = {
    {Part::embedding, ParamKind::weight, "e"},
    {Part::norms, ParamKind::attn_norm, "{i}.n1"},
    {Part::attention, ParamKind::q, "{i}.qkv", Layout::fused_columns},
    {Part::attention, ParamKind::k, "{i}.qkv", Layout::fused_columns},
    {Part::attention, ParamKind::v, "{i}.qkv", Layout::fused_columns},
    {Part::attention, ParamKind::o, "{i}.o", Layout::transposed},
    {Part::norms, ParamKind::ffn_norm, "{i}.n2"},
    {Part::dense_ffn, ParamKind::gate, "{i}.gate", Layout::transposed_one},
    {Part::dense_ffn, ParamKind::up, "{i}.up", Layout::transposed_one},
    {Part::dense_ffn, ParamKind::down, "{i}.down", Layout::transposed_one},
    {Part::norms, ParamKind::final_norm, "n"},
    {Part::lm_head, ParamKind::weight, "h"},
};
constexpr NameRow kPaired[] = {
    {Part::embedding, ParamKind::weight, "e"},
    {Part::norms, ParamKind::attn_norm, "{i}.n1"},
    {Part::attention, ParamKind::q, "{i}.q.{w}", Layout::paired},
    {Part::attention, ParamKind::k, "{i}.k.{w}", Layout::paired},
    {Part::attention, ParamKind::v, "{i}.v"},
    {Part::attention, ParamKind::v, "{i}.vb", Layout::same, true},
    {Part::attention, ParamKind::o, "{i}.o"},
    {Part::norms, ParamKind::ffn_norm, "{i}.n2"},
    {Part::router, ParamKind::weight, "{i}.r"},
    {Part::experts, ParamKind::gate, "{i}.gate"},
    {Part::experts, ParamKind::up, "{i}.up"},
    {Part::experts, ParamKind::down, "{i}.down"},
    {Part::norms, ParamKind::final_norm, "n"},
    {Part::lm_head, ParamKind::weight, "h"},
};

ModelConfig wide_heads(const char* recipe) {
  ModelConfig c = small_config();
  c.head_width = 6;
  c.width = 40;  // more rows than a strip holds
  if (find_recipe(recipe).has_router())
    c.routing = default_options(find_recipe(recipe), 3, 2, c.layers);
  return c;
}

TEST_F(TensorMap, TurnedAndPaired) {
  ModelConfig paired = wide_heads("mixtral");
  paired.attention_bias = true;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(dtype));
    expect_bound({"turned", kTurned, "h"}, wide_heads("dense"), dtype);
    expect_bound({"paired", kPaired, "h"}, paired, dtype);
  }
}

TEST_F(TensorMap, WhereTheNumbersGo) {
  const ModelConfig config = wide_heads("dense");
  const auto model = drawn_model(config);
  const Safetensors turned = written({"turned", kTurned, "h"}, *model, DType::f32);
  const Tensor qkv = turned.get("0.qkv");
  ASSERT_EQ(describe(qkv), "f32 [40, 48]");  // q 24, k 12, v 12
  const auto at = [&](const char* name, int64_t row, int64_t col) {
    return param_named(*model, name)->value.row<float>(row)[col];
  };
  EXPECT_EQ(qkv.row<float>(7)[5], at("layers.0.attn.q.weight", 5, 7));
  EXPECT_EQ(qkv.row<float>(7)[24 + 5], at("layers.0.attn.k.weight", 5, 7));
  EXPECT_EQ(qkv.row<float>(33)[36 + 11], at("layers.0.attn.v.weight", 11, 33));
  ModelConfig biased = wide_heads("mixtral");
  biased.attention_bias = true;
  const auto other = drawn_model(biased);
  const Safetensors paired = written({"paired", kPaired, "h"}, *other, DType::f32);
  const float* q = param_named(*other, "layers.1.attn.q.weight")->value.as<float>();
  const float* b = param_named(*other, "layers.1.attn.q.bias")->value.as<float>();
  // Rows 0 3 1 4 2 5 of each head of 6.
  const int64_t order[] = {0, 3, 1, 4, 2, 5};
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t r = 0; r < 6; ++r) {
      EXPECT_EQ(paired.get("1.q.weight").row<float>(6 * head + r)[3],
                q[(6 * head + order[r]) * 40 + 3]);
      EXPECT_EQ(paired.get("1.q.bias").as<float>()[6 * head + r], b[6 * head + order[r]]);
    }
}

TEST_F(TensorMap, ViewsOfTheFile) {
  const ModelConfig config = small_olmoe();
  const auto model = drawn_model(config);
  const TensorNames names = *architecture_of(config).names;
  const Safetensors file = written(names, *model, DType::bf16);
  Model bound(config, Storage::bound);
  bind_tensors(map_tensors(names, bound), file, bound, LoadFor::inference);
  const auto data_of = [&](const char* name) { return file.get(name).data; };
  EXPECT_EQ(param_named(bound, "embed.weight")->value.data, data_of("model.embed_tokens.weight"));
  EXPECT_EQ(param_named(bound, "layers.1.attn.k.weight")->value.data,
            data_of("model.layers.1.self_attn.k_proj.weight"));
  const Param& up = *param_named(bound, "layers.1.ffn.experts.up.weight");
  ASSERT_EQ(up.places().size(), 3u);
  EXPECT_EQ(up.expert(2).data, data_of("model.layers.1.mlp.experts.2.up_proj.weight"));
  EXPECT_NE(param_named(bound, "final_norm.weight")->value.data, data_of("model.norm.weight"));

  const ModelConfig fused = small_nanomoe(false, false);
  const auto nanomoe = drawn_model(fused);
  const TensorNames theirs = *architecture_of(fused).names;
  const Safetensors other = written(theirs, *nanomoe, DType::f32);
  Model rows(fused, Storage::bound);
  bind_tensors(map_tensors(theirs, rows), other, rows, LoadFor::inference);
  EXPECT_EQ(param_named(rows, "layers.0.attn.v.weight")->value.data,
            other.get("transformer.h.0.attn.c_attn.weight").slice_rows(16, 24).data);
}

TEST_F(TensorMap, TablesThatNobodyNeeds) {
  constexpr std::string_view kBuffers[] = {"{i}.freq"};
  const TensorNames names{"turned", kTurned, "h", kBuffers};
  const ModelConfig config = wide_heads("dense");
  const auto model = drawn_model(config);
  std::vector<SafetensorsItem> items = items_of(map_tensors(names, *model), DType::f32, true);
  float numbers[3] = {};
  items.push_back(
      {.name = "1.freq", .value = Tensor(numbers, DType::f32, {3}), .dtype = DType::f32});
  write_safetensors(folder_ / "m.safetensors", items);
  const Safetensors file = Safetensors::open(folder_ / "m.safetensors");
  EXPECT_NO_THROW(check_account(map_tensors(names, *model), file));
  bind_tensors(map_tensors(names, *model), file, *model, LoadFor::training);
  EXPECT_FAILS(check_account(map_tensors({"turned", kTurned, "h"}, *model), file),
               "\"1.freq\" is no part of the model");
}

}  // namespace
}  // namespace moe::test::tensor_map_test
