// The tensors of a model folder whose weights stand in few bits beside their scales, as the weights
// that these mean.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "hub/folder/packed_forms.h"

namespace moe {

// The tensors of a folder with those of each packed weight as one under the weight's name, in
// memory of their own; the others are views of the file. MXFP4 stays what it is, [..,R,I] in GGUF's
// order, with gates and ups one behind the other. Whole numbers of 4 and 8 bits become q4_0, q4_1
// or q8_0 where these hold them (hub/folder/packed_matrix.h), the experts of a layer in one type;
// all else becomes 16 bits, [O,I], the products rounded once: f16 where the scales are f16, but for
// those of FP8's blocks, and bf16 otherwise; of bitsandbytes' codes the type that they say, and f16
// of its whole numbers. Scales of activations and of caches of keys and values, which weights do
// not depend on, are left out.
class UnpackedTensors : public NamedTensors {
 public:
  // The weights without their numbers. Fails, naming the tensor, where the parts of one do not fit
  // together or one is missing.
  UnpackedTensors(std::shared_ptr<const Safetensors> file, const Packing& packing);

  // Makes the numbers of those weights that are wanted; the others never have any, and get() fails
  // for them. Once.
  using IsWanted = std::function<bool(std::string_view weight)>;
  void unpack(const IsWanted& is_wanted = [](std::string_view) { return true; });

  // Biases of nothing but zeros beside weights of GPTQ: AutoGPTQ gives one to every layer, whether
  // the model has it or not.
  const std::vector<std::string>& biases_of_zeros() const { return biases_of_zeros_; }

 private:
  // A weight whose numbers are still packed.
  struct PackedWeight {
    std::string name;
    bool in_type_of_bank = false;  // else in the one that its form keeps
    std::function<Tensor(DType as, const MemoryOfWeights&)> unpack;
  };

  void add_weight(const NamedTensor& numbers, const PackedForm& form, const Packing& packing);
  void add_plain(const NamedTensor& tensor, Packing::Kind kind);
  PackedParts parts_of(const NamedTensor& numbers, const PackedForm& form) const;
  bool is_consumed(std::string_view name, Packing::Kind kind) const;
  void* allocate(int64_t bytes);

  std::shared_ptr<const Safetensors> file_;
  std::vector<PackedWeight> packed_;
  std::map<std::string, DType> types_;  // that weights become, by what their bank is called
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::string> biases_of_zeros_;
};

}  // namespace moe
