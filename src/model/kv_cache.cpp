#include "model/kv_cache.h"

#include <cstring>

#include "core/error.h"

namespace moe {

KvCache::KvCache(const ModelConfig& config, DType dtype, int64_t sequences, int64_t capacity) : capacity_(capacity) {
  for (int64_t i = 0; i < config.layers; ++i) {
    k_.push_back(memory_.alloc(dtype, {sequences * capacity, config.kv_width()}));
    v_.push_back(memory_.alloc(dtype, {sequences * capacity, config.kv_width()}));
  }
  for (int64_t s = 0; s < sequences; ++s) first_row_.push_back(s * capacity);
}

void KvCache::store(int64_t layer, const Batch& batch, Tensor k, Tensor v) {
  const auto l = static_cast<size_t>(layer);
  for (int64_t s = 0; s < batch.sequences(); ++s)
    for (int64_t n = batch.bounds[static_cast<size_t>(s)]; n < batch.bounds[static_cast<size_t>(s) + 1]; ++n) {
      const int64_t position = batch.positions[static_cast<size_t>(n)];
      if (position >= capacity_) fail("the cache holds {} positions but a token stands at position {}; ask for a longer context", capacity_, position);
      const int64_t row = first_row_[static_cast<size_t>(s)] + position;
      const auto copy = [&](const Tensor& to, const Tensor& from) {
        std::memcpy(static_cast<char*>(to.data) + row * to.row_bytes, static_cast<const char*>(from.data) + n * from.row_bytes,
                    static_cast<size_t>(to.row_bytes));
      };
      copy(k_[l], k);
      copy(v_[l], v);
    }
}

ops::KvView KvCache::view(int64_t layer, const Batch& batch) const {
  const auto l = static_cast<size_t>(layer);
  return {k_[l], v_[l], batch.bounds, std::span(first_row_).first(static_cast<size_t>(batch.sequences()))};
}

}  // namespace moe
