// The learning rate of each step: linear warm-up, then cosine, linear, constant or wsd. A pure
// function of the step.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace moe {

// Steps count from 1. Up to `warmup` the rate grows linearly and reaches lr at step `warmup`; then
// it falls and reaches min_lr at step `steps`.
//   t = (step - warmup) / (steps - warmup)
// where a run was planned anew after step a, at t = p:  t = p + (1 - p) (step - a) / (steps - a)
//   cosine: min + (lr - min) (1 + cos(pi t)) / 2;   linear: lr + (min - lr) t;   constant: lr
// wsd (warm-up, stable, decay) stays at lr until only the share `cooldown` of the steps is left,
// and falls from there, t counting from that step in place of `warmup`:
//   wsd: min + (lr - min) (1 - sqrt(t))    (Haegele et al., arXiv 2405.18392)
double learning_rate(const TrainOptions& resolved_options, int64_t step);

// Up to here the rates are those of a run of any other number of steps that is stable as long; 0
// where all of them hang on that number.
int64_t stable_until(const TrainOptions& resolved_options);

}  // namespace moe
