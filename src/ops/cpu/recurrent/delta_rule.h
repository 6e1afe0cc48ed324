// What the kernels of the gated delta rule are given, the same for all instruction sets.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace moe::ops {

// Some tokens of one value head.
struct DeltaTokens {
  int64_t count, first;           // how many, and the row of the first one
  int64_t rows;                   // C: of the state
  const float *k, *q, *kq;        // [count,C], [count,C], [count]: normed, and their products
  const float *decay, *strength;  // [count]
};

// Where their gradients are added, and those of values written.
struct DeltaGrads {
  float *dq, *dk;                 // [count,C]: of the normed
  Tensor dv;                      // [N,Cv]
  float *dlog_decay, *dstrength;  // of the first token; the next one's `stride` further on
  int64_t stride;
};

}  // namespace moe::ops
