// A model folder whose weights are packed, beside the one that it was made from.
#pragma once

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/json.h"
#include "formats/safetensors.h"
#include "hub/configs.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test {

// A file to be, in memory that lives as long as it.
struct MadeFile {
  std::vector<SafetensorsItem> items;
  std::vector<std::vector<uint8_t>> memory;

  Tensor put(const std::string& name, DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t(nullptr, dtype, shape);
    memory.emplace_back(static_cast<size_t>(t.bytes()));
    t.data = memory.back().data();
    items.push_back({name, t, dtype});
    return t;
  }
};

// Of widths that blocks of few bits divide.
inline ModelConfig small_gpt_oss(int64_t width) {
  ModelConfig c = small_config();
  c.width = c.expert_width = c.dense_width = width;
  c.head_width = width / 4;
  c.act = ops::Act::swiglu_oai;
  c.attention_bias = c.attention_out_bias = c.ffn_bias = c.attention_sinks = true;
  c.attention_window = 5;
  c.window_layers = {0};
  c.routing = default_options(find_recipe("gpt-oss"), 3, 2, c.layers);
  c.model_type = "gpt_oss";
  return c;
}

class PackedFolder : public ::testing::Test {
 protected:
  TempFolder plain_, packed_;

  // The folder `packed_` beside `plain_`, with what the config says of its packing.
  void write(MadeFile& made, const Json& packing) {
    Json config = read_json(plain_ / "config.json");
    config["quantization_config"] = packing;
    write_atomically(packed_ / "config.json", config.dump());
    write_atomically(packed_ / "tokenizer.json", read_text(plain_ / "tokenizer.json"));
    write_safetensors(packed_ / "model.safetensors", made.items);
  }
};

// A scale as it stands in a file.
inline float put_scale(const Tensor& scales, int64_t i, float x) {
  if (scales.dtype == DType::bf16) return to_f32(static_cast<bf16*>(scales.data)[i] = to_bf16(x));
  if (scales.dtype == DType::f16)
    return f16_to_f32(static_cast<uint16_t*>(scales.data)[i] = f32_to_f16(x));
  return static_cast<float*>(scales.data)[i] = x;
}

}  // namespace moe::test
