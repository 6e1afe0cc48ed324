// The frequencies of rotary positions, worked out once for a model.
#pragma once

#include "model/config.h"

namespace moe {

// frequency[c] = theta^(-2c/C), changed as `scaling` says; factor is its attention_factor.
ops::RopeFrequencies rope_frequencies(int64_t head_width, float theta, const RopeScaling& scaling);

// Of a proportional scaling: how many of a head's pairs turn, the first ones.
int64_t turning_pairs(const RopeScaling&, int64_t head_width);

// What latent attention multiplies its scores by, beside 1 / sqrt(C)
// (transformers:deepseek_v3/modeling_deepseek_v3.py, yarn_apply_mscale).
float score_factor(const RopeScaling&);

// Throws (usage) when the numbers of a scaling have no meaning.
void validate(const RopeScaling&);

}  // namespace moe
