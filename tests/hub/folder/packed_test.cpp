// Folders whose weights stand as numbers of few bits beside their scales: they load as the numbers
// that these mean, and a half of a pair that does not fit is refused by name.
#include "hub/folder/packed.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "hub/configs.h"
#include "hub/folder/packed_folder.h"
#include "hub/hub.h"
#include "hub/saved_folder.h"
#include "support/param_named.h"
#include "tensor/quant.h"

namespace moe::test::packed_test {
namespace {

// "X" [E,I,O] of a saved folder as transformers stores it in MXFP4: [E,O,I/32,16], number 2j of a
// block in the lower half of byte j and 2j + 1 above it, and [E,O,I/32].
void pack(MadeFile& to, const std::string& name, const Tensor& x) {
  const int64_t experts = x.shape[0], in = x.shape[1], out = x.shape[2], blocks = in / 32;
  const Tensor numbers = to.put(name + "_blocks", DType::u8, {experts, out, blocks, 16}),
               scales = to.put(name + "_scales", DType::u8, {experts, out, blocks});
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t o = 0; o < out; ++o)
      for (int64_t b = 0; b < blocks; ++b) {
        float row[32];
        for (int64_t i = 0; i < 32; ++i) row[i] = x.as<float>()[(e * in + b * 32 + i) * out + o];
        uint8_t block[17];
        quantise(block, row, DType::mxfp4, 32);
        const auto number = [&](int i) {
          return i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4;
        };
        const int64_t at = (e * out + o) * blocks + b;
        scales.as<uint8_t>()[at] = block[0];
        for (int j = 0; j < 16; ++j)
          numbers.as<uint8_t>()[at * 16 + j] =
              static_cast<uint8_t>(number(2 * j) | number(2 * j + 1) << 4);
      }
}

class Packed : public PackedFolder {
 protected:
  void write_mxfp4(MadeFile& made) {
    write(made, {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.embed_tokens"}}});
  }
};

// Every expert's numbers are of MXFP4 beforehand, so that packing loses nothing.
std::unique_ptr<Model> made_of_mxfp4(const ModelConfig& config) {
  auto model = drawn_model(config, 4);
  for (Param* param : model->params()) {
    if (param->part != Part::experts || param->is_bias()) continue;
    std::vector<uint8_t> blocks(static_cast<size_t>(bytes_of(DType::mxfp4, param->value.numel())));
    quantise(blocks.data(), param->value.as<float>(), DType::mxfp4, param->value.numel());
    dequantise(param->value.as<float>(), blocks.data(), DType::mxfp4, param->value.numel());
  }
  return model;
}

TEST_F(Packed, Mxfp4) {
  const auto model = made_of_mxfp4(small_gpt_oss(64));
  save_model(plain_.path(), *model, *make_tokenizer("bytes"), DType::f32);
  const Safetensors file = Safetensors::open(plain_.path());
  MadeFile made;
  for (const NamedTensor& tensor : file.tensors()) {
    if (tensor.name.ends_with("gate_up_proj") || tensor.name.ends_with("experts.down_proj"))
      pack(made, tensor.name, tensor.value);
    else made.items.push_back({tensor.name, tensor.value, DType::f32});
  }
  write_mxfp4(made);
  const LoadedModel trained = load_model(packed_.path());
  for (Param* param : model->params()) {
    const Tensor got = param_named(*trained.model, param->name)->value;
    ASSERT_EQ(describe(got), describe(param->value));
    ASSERT_EQ(values(got), values(param->value)) << param->name;
  }
  // Nothing is made larger than it is.
  const LoadedModel opened = open_model(packed_.path(), {});
  for (const char* part : {"gate", "up", "down"}) {
    const Param* param =
        param_named(*opened.model, fmt::format("layers.1.ffn.experts.{}.weight", part));
    EXPECT_EQ(param->value.dtype, DType::mxfp4);
    for (int64_t e = 0; e < 3; ++e) {
      const Tensor expert = param->expert(e), want = param_named(*model, param->name)->value.at(e);
      std::vector<float> got(static_cast<size_t>(want.numel()));
      dequantise(got.data(), expert.data, DType::mxfp4, want.numel());
      EXPECT_EQ(std::memcmp(got.data(), want.data, got.size() * sizeof(float)), 0) << part << e;
    }
  }
  // What it is saved as has no packing.
  save_model(packed_ / "again", *trained.model, *trained.tokenizer, DType::f32);
  EXPECT_EQ(
      read_text(packed_ / "again/model.safetensors") == read_text(plain_ / "model.safetensors"),
      true);
  EXPECT_EQ(read_text(packed_ / "again/config.json"), read_text(plain_ / "config.json"));
}

TEST_F(Packed, HalvesThatDoNotFitAreRefused) {
  const auto model = made_of_mxfp4(small_gpt_oss(64));
  save_model(plain_.path(), *model, *make_tokenizer("bytes"), DType::f32);
  const std::string name = "model.layers.0.mlp.experts.down_proj";
  const auto refused = [&](MadeFile& made, const char* why) {
    write_mxfp4(made);
    EXPECT_FAILS(open_model(packed_.path(), {}), why);
  };
  MadeFile alone;
  alone.put(name + "_blocks", DType::u8, {3, 64, 2, 16});
  refused(alone,
          "down_proj_blocks\" has no \"model.layers.0.mlp.experts.down_proj_scales\" beside");
  MadeFile scales;
  scales.put(name + "_scales", DType::u8, {3, 64, 2});
  refused(scales, "down_proj_scales\" has no");
  MadeFile other;
  other.put(name + "_blocks", DType::u8, {3, 64, 2, 16});
  other.put(name + "_scales", DType::u8, {3, 64, 3});
  refused(other, "is u8 [3, 64, 2, 16] with scales u8 [3, 64, 3]");
  MadeFile wide;
  wide.put(name + "_blocks", DType::u8, {3, 64, 2, 8});
  wide.put(name + "_scales", DType::u8, {3, 64, 2});
  refused(wide, "u8 [..,R,I/32,16] and u8 [..,R,I/32] are needed");
  MadeFile none;
  write(none, {{"quant_method", "hqq"}});
  EXPECT_FAILS(open_model(packed_.path(), {}),
               "\"quant_method\" is \"hqq\"; \"mxfp4\", \"fp8\", \"gptq\", \"awq\", "
               "\"compressed-tensors\", \"modelopt\", \"fbgemm_fp8\", \"bitsandbytes\" are read");
  write(none, {{"quant_method", std::string(500, 'x')}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "xx...; \"mxfp4\"");  // cut, as of other keys
  write(none, {{"quant_method", "fp8"}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "FP8 without \"weight_block_size\"");
  write(none, {{"quant_method", "fp8"}, {"fmt", "e5m2"}, {"weight_block_size", {128, 128}}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "\"fmt\" is \"e5m2\"");
  write(none, {{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "two sizes of a block are needed");
  write(none, {{"quant_method", "fp8"}, {"weight_per_tensor", true}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "\"weight_per_tensor\" is true; only scales of");
  write(none, {{"quant_method", "mxfp4"}, {"weight_sise", 4}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "weight_sise");
}

class Fp8 : public Packed, public ::testing::WithParamInterface<DType> {};

// DeepSeek's scales are f32, Qwen's bf16 or f16.
INSTANTIATE_TEST_SUITE_P(Scales, Fp8, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// A byte is sign, four bits of exponent and three of fraction; its numbers times their block's
// scale are rounded to bf16 once.
TEST_P(Fp8, NumbersTimesScales) {
  ModelConfig config = small_config();
  config.width = 40;
  config.head_width = 10;
  config.model_type = "llama";
  Model model(config);
  save_model(plain_.path(), model, *make_tokenizer("bytes"), DType::f32);
  const Safetensors file = Safetensors::open(plain_.path());
  MadeFile made;
  std::map<std::string, std::vector<float>> want;
  const RngKey key = RngKey::from_seed(6);
  uint64_t drawn = 0;
  for (const NamedTensor& tensor : file.tensors()) {
    const Tensor& x = tensor.value;
    if (x.rank != 2 || tensor.name.find("proj") == std::string::npos) {
      made.items.push_back({tensor.name, x, DType::f32});
      continue;
    }
    const int64_t rows = x.rows(), cols = x.cols();
    const Tensor bytes = made.put(tensor.name, DType::f8_e4m3, {rows, cols}),
                 scales = made.put(tensor.name + "_scale_inv", GetParam(),
                                   {(rows + 15) / 16, (cols + 15) / 16});
    std::vector<float> scale;
    for (int64_t i = 0; i < scales.numel(); ++i)
      scale.push_back(put_scale(scales, i, 0.5f + uniform(key, drawn++)));
    std::vector<float>& numbers = want[tensor.name];
    for (int64_t i = 0; i < rows * cols; ++i) {
      auto byte = static_cast<uint8_t>(uniform(key, drawn++) * 256);
      if ((byte & 0x7F) == 0x7F) byte = 0;
      static_cast<uint8_t*>(bytes.data)[i] = byte;
      const int exponent = byte >> 3 & 15, fraction = byte & 7;
      const double size =
          exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
      const auto number = static_cast<float>(byte & 0x80 ? -size : size);
      const int64_t block = i / cols / 16 * scales.cols() + i % cols / 16;
      numbers.push_back(to_f32(to_bf16(number * scale[static_cast<size_t>(block)])));
    }
  }
  write(made, {{"quant_method", "fp8"},
               {"activation_scheme", "dynamic"},
               {"weight_per_tensor", false},
               {"act_per_tensor", false},
               {"fmt", "e4m3"},
               {"weight_block_size", {16, 16}}});
  const LoadedModel loaded = load_model(packed_.path());
  save_model(packed_ / "again", *loaded.model, *loaded.tokenizer, DType::f32);
  const Safetensors again = Safetensors::open(packed_ / "again");
  ASSERT_EQ(want.size(), 14u);
  for (const auto& [name, numbers] : want) {
    const Tensor got = again.get(name);
    EXPECT_EQ(std::memcmp(got.data, numbers.data(), numbers.size() * sizeof(float)), 0) << name;
  }
  EXPECT_EQ(
      param_named(*open_model(packed_.path(), {}).model, "layers.0.attn.q.weight")->value.dtype,
      DType::bf16);
  made.items.erase(made.items.end() - 1);
  write(made, {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}});
  EXPECT_FAILS(open_model(packed_.path(), {}), "");
}

}  // namespace
}  // namespace moe::test::packed_test
