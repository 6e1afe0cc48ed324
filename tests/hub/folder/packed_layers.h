// Small models packed in one form or another: what a folder of them loads as is worked out by the
// test number by number while it is packed, for dense layers and for experts, which come one at a
// time.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hub/configs.h"
#include "hub/folder/packed.h"
#include "hub/folder/packed_folder.h"
#include "hub/hub.h"
#include "support/param_named.h"

namespace moe::test {

// Packs the layer [out, in] and returns its numbers, row by row; none where it stays as it was.
using Pack = std::function<std::vector<float>(MadeFile& to, const std::string& layer, int64_t out,
                                              int64_t in)>;

inline float rounded(DType dtype, double x) {
  const auto f = static_cast<float>(x);
  return dtype == DType::f16 ? f16_to_f32(f32_to_f16(f)) : to_f32(to_bf16(f));
}

// E4M3: a sign, four bits of exponent and three of fraction.
inline double f8_number(uint8_t byte) {
  const int exponent = byte >> 3 & 15, fraction = byte & 7;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return byte & 0x80 ? -size : size;
}

// What compressed-tensors says.
inline Json compressed(const char* format, const Json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme", nullptr},
          {"quantization_status", "compressed"},
          {"sparsity_config", Json::object()},
          {"version", "0.12.2"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"input_activations", nullptr},
              {"output_activations", nullptr},
              {"format", nullptr},
              {"weights", weights}}}}}};
}

class PackedLayers : public PackedFolder {
 protected:
  double drawn() { return uniform(key_, next_++); }
  int64_t drawn_below(int64_t n) { return static_cast<int64_t>(drawn() * static_cast<double>(n)); }

  // Saves a small model of experts plain and packed by `pack`, and demands that what is loaded are
  // the numbers that it gave, of the type `kept` where they are not trained.
  // A width of 48 is no whole number of the blocks of 32 in which q4_0, q4_1 and q8_0 have scales.
  void expect_read(const Json& packing, DType kept, const Pack& pack, int64_t expert_width = 16,
                   int64_t width = 48) {
    ModelConfig config = small_olmoe();
    config.width = width;
    config.head_width = width / 4;
    config.expert_width = config.dense_width = expert_width;
    save_model(plain_.path(), *std::make_unique<Model>(config), *make_tokenizer("bytes"),
               DType::f32);
    const Safetensors file = Safetensors::open(plain_.path());
    MadeFile made;
    std::map<std::string, std::vector<float>> want;
    for (const NamedTensor& tensor : file.tensors()) {
      const Tensor& x = tensor.value;
      std::vector<float> numbers;
      if (tensor.name.find("_proj.") != std::string::npos)
        numbers = pack(made, tensor.name.substr(0, tensor.name.size() - strlen(".weight")),
                       x.rows(), x.cols());
      if (numbers.empty()) made.items.push_back({tensor.name, x, DType::f32});
      else want[tensor.name] = std::move(numbers);
    }
    ASSERT_GE(want.size(), 18u) << "two layers of three experts with three matrices";
    write(made, packing);
    const LoadedModel loaded = load_model(packed_.path());
    save_model(packed_ / "again", *loaded.model, *loaded.tokenizer, DType::f32);
    const Safetensors again = Safetensors::open(packed_ / "again");
    for (const auto& [name, numbers] : want) {
      const Tensor got = again.get(name);
      ASSERT_EQ(got.numel(), std::ssize(numbers)) << name;
      EXPECT_EQ(std::memcmp(got.data, numbers.data(), numbers.size() * sizeof(float)), 0) << name;
    }
    const LoadedModel opened = open_model(packed_.path(), {});
    for (const char* part : {"gate", "up", "down"})
      EXPECT_EQ(param_named(*opened.model, fmt::format("layers.1.ffn.experts.{}.weight", part))
                    ->value.dtype,
                kept);
  }

  void expect_refused(const Json& packing, const char* why) {
    MadeFile none;
    write(none, packing);
    EXPECT_FAILS(open_model(packed_.path(), {}), why);
  }

  void expect_parts_refused(const Packing& packing, const MadeFile& made, const char* why) {
    write_safetensors(packed_ / "model.safetensors", made.items);
    const auto file = std::make_shared<const Safetensors>(Safetensors::open(packed_.path()));
    EXPECT_FAILS(UnpackedTensors(file, packing), why);
    EXPECT_FAILS(UnpackedTensors(file, packing), packed_.path().c_str());
  }

 private:
  RngKey key_ = RngKey::from_seed(8);
  uint64_t next_ = 0;
};

}  // namespace moe::test
