// What the kernels of the selective scan are given, the same for all instruction sets.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace moe::ops {

// Lanes that a sum over channels runs in, at most.
constexpr int64_t kSelectedLanes = 16;

// Channels [first, first + W), of which each keeps C numbers; W <= kSelectiveBlock.
struct SelectedBlock {
  int64_t first, channels, states;
  const float* rate;         // [C,kSelectiveBlock]: -e^a_log
  const float *bias, *skip;  // [W]
};

// One token, of which the block's channels are looked at.
struct SelectedToken {
  Tensor x, dt;  // [N,I] A
  int64_t row;
  const float *b, *c;  // [C]
};

// Where its gradients go: dx, ddt and dbc are written, the others added to.
struct SelectedGrads {
  Tensor dx, ddt;        // [N,I] A
  float* dbc;            // [2C]: of the block's channels
  float* sums;           // [2C,kSelectedLanes]: room for their sums
  float* drate;          // [C,kSelectiveBlock]
  float *dbias, *dskip;  // [W]
};

}  // namespace moe::ops
