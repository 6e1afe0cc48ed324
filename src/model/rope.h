// The frequencies of rotary positions, worked out once for a model.
#pragma once

#include "model/config.h"
#include "moe/pass.h"

namespace moe {

// frequency[c] = theta^(-2c/C), changed as `scaling` says; factor is its attention_factor.
// stretched: of texts that stretch.
ops::RopeFrequencies rope_frequencies(int64_t head_width, float theta, const RopeScaling& scaling,
                                      bool stretched = false);

// Whether a text that will hold up to `limit` tokens turns by other frequencies than shorter ones.
bool stretches(const RopeScaling&, int64_t limit);

// What the batch's rows turn by: `stretched` for the sequences that `stretch` [S] says it of,
// `usual` for the others. Views into `memory`.
ops::CosSinTable cos_sin_of(Run&, Arena& memory, const Batch&, const ops::RopeFrequencies& usual,
                            const ops::RopeFrequencies& stretched,
                            const std::vector<bool>& stretch);

// What queries turn by where they grow: the usual table, each row times the factor of its position.
// Views into `memory`.
ops::CosSinTable grown_cos_sin(Run&, Arena& memory, const Batch&, const ops::RopeFrequencies& usual,
                               const QueryGrowth&);
// By which nothing of a head of this even width turns, so that a grown table multiplies all of it.
ops::RopeFrequencies still_frequencies(int64_t head_width);

// Of a proportional scaling: how many of a head's pairs turn, the first ones.
int64_t turning_pairs(const RopeScaling&, int64_t head_width);

// What latent attention multiplies its scores by, beside 1 / sqrt(C)
// (transformers:deepseek_v3/modeling_deepseek_v3.py, yarn_apply_mscale).
float score_factor(const RopeScaling&);

// Throws (usage) when the numbers of a scaling have no meaning.
void validate(const RopeScaling&);

}  // namespace moe
