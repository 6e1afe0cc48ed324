// Weights of a model folder that stand in two tensors, numbers of few bits and scales of blocks:
// MXFP4 as gpt-oss was published in (transformers:integrations/mxfp4.py) and FP8 with scales of
// 128 x 128 as DeepSeek-V3 was (github deepseek-ai/DeepSeek-V3, inference/kernel.py).
#pragma once

#include <memory>

#include "core/json.h"
#include "formats/safetensors.h"

namespace moe {

struct Packing {
  enum class Kind { none, mxfp4, fp8 };
  Kind kind = Kind::none;
  int64_t block_rows = 0, block_cols = 0;  // fp8: of numbers that share a scale
};

// What "quantization_config" of a config.json says; without one, none. Fails, naming the key, for
// what is not known.
Packing read_packing(const JsonReader& config);

// The tensors of a folder with each such pair as one under the name of the weight, in memory of
// their own: of MXFP4 "X_blocks" [..,R,I/32,16] and "X_scales" [..,R,I/32] as X, mxfp4 [..,R,I]; of
// FP8 "X" [O,I] and "X_scale_inv" [ceil(O/B),ceil(I/B)], f32, bf16 or f16, as X, bf16 [O,I], the
// product rounded once. Gates and ups of "gate_up_proj", which stand in turns, come one behind the
// other, so that nothing needs to be moved again. The others are views of the file.
class UnpackedTensors : public NamedTensors {
 public:
  // Fails, naming the tensor, where the halves of a pair do not fit together or one is missing.
  UnpackedTensors(std::shared_ptr<const Safetensors> file, const Packing& packing);

 private:
  void add_mxfp4(const std::string& name, const Tensor& blocks, const Tensor& scales);
  void add_fp8(const std::string& name, const Tensor& numbers, const Tensor& scales,
               const Packing& packing);
  void* allocate(int64_t bytes);

  std::shared_ptr<const Safetensors> file_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace moe
