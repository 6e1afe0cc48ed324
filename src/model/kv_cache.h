// Keys and values of past tokens, kept by a session between forwards.
#pragma once

#include <span>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "tensor/arena.h"
#include "tensor/run.h"

namespace moe {

// One contiguous run of positions for each sequence, `capacity` in whole blocks of 64; layers side by side. Keys lie transposed (ops::KvView) but for q8_0,
// whose blocks run along a row. Owns its memory.
class KvCache {
 public:
  // Keys and values are kept in `dtype`: f32, bf16, f16, or q8_0 (heads of a multiple of 32). Fails (usage) for another, or a model that it does not fit.
  KvCache(const ModelConfig&, DType dtype, int64_t sequences, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  // Copies the batch's new keys and values to their places (sequence s of the batch is sequence s of the cache), rounded to the cache's dtype.
  // k, v [N, G*C] A
  void store(Run&, int64_t layer, const Batch&, Tensor k, Tensor v);
  // bounds as in the batch; valid as long as the batch is.
  ops::KvView view(int64_t layer, const Batch&) const;

 private:
  Arena memory_;
  int64_t capacity_;
  std::vector<Tensor> k_;           // per layer [rows / 64, G*C, 64] or [rows, G*C]
  std::vector<Tensor> v_;           // per layer [rows, G*C]
  std::vector<int64_t> first_row_;  // [sequences]
};

}  // namespace moe
