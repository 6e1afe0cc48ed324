// What the "quantization_config" of a config.json says of how the weights beside it are packed.
// Which of them are, and in how many bits, the tensors show (hub/folder/packed.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace moe {

struct Packing {
  enum class Kind { none, mxfp4, fp8, gptq, awq, compressed, modelopt, fbgemm, bitsandbytes };
  Kind kind = Kind::none;
  // fp8, and compressed where it has blocks: of numbers that share a scale.
  int64_t block_rows = 0, block_cols = 0;
  // Of the others: so many numbers of a row may share a scale. One that has one scale is none.
  std::vector<int64_t> groups = {};
  bool zeros_less_one = false;  // gptq: zero points stand in the file less one
};

// Without "quantization_config", none. Fails, naming the key, for what is not known or not read.
Packing read_packing(const JsonReader& config);
// The text of ModelOpt's own file, in which its older versions said alone what newer ones write
// into config.json too.
inline constexpr const char* kModelOptFile = "hf_quant_config.json";
Packing read_modelopt_file(std::string_view text, const std::string& where);

}  // namespace moe
