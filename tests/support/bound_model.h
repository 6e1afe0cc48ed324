// A model whose weights lie in memory that it does not own, as a mapped file's do.
#pragma once

#include <memory>

#include "model/model.h"
#include "tensor/quant.h"

namespace moe::test {

// The same numbers in memory that the model does not own, as a mapped file's, matrices in another
// type where that can hold them.
inline std::unique_ptr<Model> bound_like(const Model& model, DType dtype) {
  auto bound = std::make_unique<Model>(model.config(), Storage::bound);
  for (size_t i = 0; i < bound->params().size(); ++i) {
    const Tensor& from = model.params()[i]->value;
    const bool other =
        dtype != DType::f32 && model.params()[i]->is_matrix() &&
        from.shape[static_cast<size_t>(from.rank) - 1] % block_of(dtype).elements == 0;
    Tensor to = from;
    if (other) {
      to.dtype = dtype;
      to.row_bytes = bytes_of(dtype, from.shape[static_cast<size_t>(from.rank) - 1]);
      to.data = bound->allocate(DType::f32, {from.numel()}).data;
      quantise(to.data, from.as<float>(), dtype, from.numel());
    }
    bound->bind(*bound->params()[i], to);
  }
  return bound;
}

}  // namespace moe::test
