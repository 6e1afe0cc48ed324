// Of a packed folder only what a parameter takes is unpacked: indexers too, but not what is beside
// the model of text, nor experts that lie on another process.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "hub/configs.h"
#include "hub/folder/packed.h"
#include "hub/folder/packed_folder.h"
#include "hub/hub.h"
#include "hub/tensor_map.h"
#include "support/param_named.h"
#include "support/processes.h"

namespace moe::test::packed_taken_test {
namespace {

const Json kFp8 = {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};

class PackedTaken : public PackedFolder {
 protected:
  // Saves the model with all its projections in FP8, those of indexers too.
  MadeFile made_of(const ModelConfig& config) {
    save_model(plain_.path(), *std::make_unique<Model>(config), *make_tokenizer("bytes"));
    file_ = std::make_unique<Safetensors>(Safetensors::open(plain_.path()));
    MadeFile made;
    for (const NamedTensor& tensor : file_->tensors())
      if (tensor.name.find("_proj") == std::string::npos && !is_of_indexer(tensor.name))
        made.items.push_back({tensor.name, tensor.value, DType::f32});
      else put_packed(made, tensor.name, tensor.value.rows(), tensor.value.cols());
    return made;
  }

  static bool is_of_indexer(const std::string& name) {
    return name.ends_with(".indexer.wq_b.weight") || name.ends_with(".indexer.wk.weight");
  }

  static void put_packed(MadeFile& made, const std::string& name, int64_t rows, int64_t cols) {
    const Tensor numbers = made.put(name, DType::f8_e4m3, {rows, cols}),
                 scales = made.put(name + "_scale_inv", DType::f32,
                                   {(rows + 15) / 16, (cols + 15) / 16});
    std::fill_n(static_cast<uint8_t*>(numbers.data), numbers.numel(), uint8_t{0x38});  // 1
    std::fill_n(scales.as<float>(), scales.numel(), 2.0f);
  }

  std::unique_ptr<Safetensors> file_;  // what the tensors that stay as they are lie in
};

// Of each tensor whether it has numbers.
std::map<std::string, bool> has_numbers(const LoadedModel& loaded) {
  std::map<std::string, bool> has;
  for (const NamedTensor& tensor : loaded.source->file->tensors())
    has[tensor.name] = !tensor.value.empty();
  return has;
}

class PackedIndexers : public PackedTaken, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, PackedIndexers,
                         ::testing::Values("deepseek_v32", "glm_moe_dsa"));

TEST_P(PackedIndexers, AreUnpackedAndFurtherLayersAreNot) {
  MadeFile made = made_of(small_family(GetParam()));
  const std::string further = "model.layers.3.mlp.gate_proj.weight";
  put_packed(made, further, 16, 8);
  write(made, kFp8);
  const LoadedModel loaded = open_model(packed_.path(), {}, {}, BesideText::leave_out);
  ASSERT_EQ(loaded.left_out.size(), 1u);
  EXPECT_EQ(loaded.left_out[0].tensors, 1);
  const NamedTensors& file = *loaded.source->file;
  int indexers = 0;
  for (const auto& [name, has] : has_numbers(loaded)) {
    EXPECT_EQ(has, name != further) << name;
    if (!is_of_indexer(name)) continue;
    ++indexers;
    EXPECT_EQ(values(file.get(name)),
              std::vector<double>(static_cast<size_t>(file.get(name).numel()), 2));
  }
  EXPECT_GT(indexers, 3);
  const Tensor keys = param_named(*loaded.model, "layers.1.attn.index_k.weight")->value;
  EXPECT_EQ(values(keys), std::vector<double>(static_cast<size_t>(keys.numel()), 2));
  EXPECT_FAILS(file.get(further), "it is packed, and nothing was said to want its numbers");
}

TEST_F(PackedTaken, ExpertsOfAnotherProcessStayPacked) {
  ModelConfig config = small_olmoe();
  config.routing = default_options(find_recipe("olmoe"), 4, 2, config.layers);
  MadeFile made = made_of(config);
  write(made, kFp8);
  run_processes(2, [&](const comm::Group& group) {
    for (const bool trained : {false, true}) {
      const LoadedModel loaded =
          trained ? load_model(packed_.path(), group) : open_model(packed_.path(), {}, group);
      int64_t elsewhere = 0;
      for (const auto& [name, has] : has_numbers(loaded)) {
        elsewhere += !has;
        EXPECT_TRUE(has || name.find(".experts.") != std::string::npos) << name;
      }
      EXPECT_EQ(elsewhere, 2 * 2 * 3) << "two of four experts with three matrices in two layers";
      const Param* up = param_named(*loaded.model, "layers.1.ffn.experts.up.weight");
      ASSERT_EQ(up->value.matrices(), 2);
      for (int64_t e = 0; e < 2; ++e) {
        const Tensor matrix = up->expert(e);
        EXPECT_EQ(values(matrix), std::vector<double>(static_cast<size_t>(matrix.numel()), 2));
      }
    }
  });
}

// Once made they stay; what was not wanted then is not made later.
TEST_F(PackedTaken, OnlyWhatIsWanted) {
  MadeFile made;
  put_packed(made, "a", 4, 8);
  put_packed(made, "b", 4, 8);
  write_safetensors(packed_ / "model.safetensors", made.items);
  UnpackedTensors file(std::make_shared<const Safetensors>(Safetensors::open(packed_.path())),
                       {.kind = Packing::Kind::fp8, .block_rows = 16, .block_cols = 16});
  EXPECT_EQ(describe(file.get("b")), "bf16 [4, 8]");
  file.unpack([](std::string_view name) { return name == "a"; });
  EXPECT_EQ(values(file.get("a")), std::vector<double>(32, 2));
  file.unpack();
  EXPECT_FAILS(file.get("b"), "tensor \"b\": it is packed");
}

// MXFP4 stays what it is, whatever type other experts of its bank become; and so it is said before
// its numbers are there.
TEST_F(PackedTaken, ABankOfTwoForms) {
  MadeFile made;
  const std::string first = "x.experts.0.up.", second = "x.experts.1.up.";
  made.put(first + "weight_packed", DType::u8, {2, 16});
  made.put(first + "weight_scale", DType::u8, {2, 1});
  made.put(second + "weight", DType::f8_e4m3, {2, 32});
  made.put(second + "weight_scale", DType::f32, {1});
  write_safetensors(packed_ / "model.safetensors", made.items);
  UnpackedTensors file(std::make_shared<const Safetensors>(Safetensors::open(packed_.path())),
                       {.kind = Packing::Kind::compressed});
  for (const bool unpacked : {false, true}) {
    if (unpacked) file.unpack();
    EXPECT_EQ(describe(file.get(first + "weight")), "mxfp4 [2, 32]") << unpacked;
    EXPECT_EQ(describe(file.get(second + "weight")), "bf16 [2, 32]") << unpacked;
  }
}

}  // namespace
}  // namespace moe::test::packed_taken_test
