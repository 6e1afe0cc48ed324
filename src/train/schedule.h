// The learning rate of each step: linear warm-up, then cosine, linear or constant. A pure function
// of the step.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace moe {

// Steps count from 1. Up to `warmup` the rate grows linearly and reaches lr at step `warmup`; then
// it falls and reaches min_lr at step `steps`.
//   t = (step - warmup) / (steps - warmup)
// where a run was planned anew after step a, at t = p:  t = p + (1 - p) (step - a) / (steps - a)
//   cosine: min + (lr - min) (1 + cos(pi t)) / 2;   linear: lr + (min - lr) t;   constant: lr
double learning_rate(const TrainOptions& resolved_options, int64_t step);

}  // namespace moe
