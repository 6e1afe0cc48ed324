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
  const float *decay, *strength;  // [count]; decay is 1 where channels have their own
  // [count,C] where each channel (row of the state) has its own decay, else none and k and q: the
  // decays, and k and q by them
  const float *channel_decay, *seen_k, *seen_q;
};

// Where their gradients are added, and those of values written.
struct DeltaGrads {
  float *dq, *dk;                 // [count,C]: of the normed
  Tensor dv;                      // [N,Cv]
  float *dlog_decay, *dstrength;  // of the first token; the next one's a stride further on
  int64_t decay_stride, strength_stride;
};

}  // namespace moe::ops
