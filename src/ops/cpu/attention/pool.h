// What entries are made of (pool.cpp).
#pragma once

#include <vector>

#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace moe::ops {

// A token that an entry stands for, or that stands before those.
struct PooledToken {
  int64_t row;        // of the batch
  int64_t place;      // among the tokens of an entry
  int64_t part;       // of its numbers, those that count
  const float* kept;  // in a state, where it is not in the batch; else null
};

struct PoolCall {
  Tensor x, z;        // [N,W]
  const float* bias;  // [M,W]
  int64_t parts;      // P
  std::vector<std::vector<PooledToken>> entries;

  int64_t width() const { return x.cols() / parts; }
};

inline float* PoolRoom(Arena& arena, int64_t count) {
  return static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(count) * sizeof(float)));
}

}  // namespace moe::ops
