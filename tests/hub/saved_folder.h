// For the tests of model folders: a model whose every number is drawn, and the tensors of a saved
// one written again after a change.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "formats/safetensors.h"
#include "model/model.h"

namespace moe::test {

// Buffers, biases and norms too.
inline std::unique_ptr<Model> drawn_model(const ModelConfig& config, uint64_t seed = 1) {
  auto model = std::make_unique<Model>(config);
  uint64_t index = 0;
  for (Param* param : model->params()) {
    const RngKey key = RngKey::from_seed(seed).fold(index++);
    for (int64_t i = 0; i < param->value.numel(); ++i)
      param->value.as<float>()[i] = normal(key, static_cast<uint64_t>(i));
  }
  return model;
}

// `change` is applied to each tensor, and false drops it; `also` stand before them.
inline void rewrite_tensors(const std::string& folder,
                            const std::function<bool(SafetensorsItem&)>& change,
                            std::vector<SafetensorsItem> also = {}) {
  const Safetensors file = Safetensors::open(folder);
  std::vector<SafetensorsItem> items = std::move(also);
  for (const NamedTensor& tensor : file.tensors()) {
    SafetensorsItem item{tensor.name, tensor.value, tensor.value.dtype};
    if (change(item)) items.push_back(item);
  }
  write_safetensors(folder + "/model.safetensors", items);
}

}  // namespace moe::test
