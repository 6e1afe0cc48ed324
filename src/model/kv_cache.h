// Keys and values of past tokens, kept by a session between forwards.
#pragma once

#include <span>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "tensor/arena.h"

namespace moe {

// One contiguous run of `capacity` positions for each sequence; layers side by side. Owns its memory.
class KvCache {
 public:
  KvCache(const ModelConfig&, DType dtype, int64_t sequences, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  // Copies the batch's new keys and values to their places (sequence s of the batch is sequence s of the cache).  k, v [N, G*C]
  void store(int64_t layer, const Batch&, Tensor k, Tensor v);
  // bounds as in the batch; valid as long as the batch is.
  ops::KvView view(int64_t layer, const Batch&) const;

 private:
  Arena memory_;
  int64_t capacity_;
  std::vector<Tensor> k_, v_;       // per layer [sequences * capacity, G*C]
  std::vector<int64_t> first_row_;  // [sequences]
};

}  // namespace moe
