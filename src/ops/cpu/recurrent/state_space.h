// What the kernels of the state space are given, the same for all instruction sets.
#pragma once

#include <cstdint>

namespace moe::ops {

// One token in one head.
struct ScanStep {
  int64_t width, states;   // P, C
  const float *x, *b, *c;  // [P], [C], [C]
  float step, decay, skip;
};

// Where its gradients go: db and dc are added to, the others written.
struct ScanGrads {
  float *dx, *db, *dc;  // [P], [C], [C]
  float *dstep, *dlog_decay, *dskip;
};

}  // namespace moe::ops
