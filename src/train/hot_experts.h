// Which experts a text uses most, layer by layer: those that @tune experts:hot trains.
//
// After ESFT-Token (Wang et al., "Let the Expert Stick to His Last: Expert-Specialized Fine-Tuning
// for Sparse Architectural Large Language Models", arXiv 2407.01906): experts are taken in the
// order of the share of the layer's choices that are theirs, until those taken have the share
// options.hot_share together. ESFT trains their matrices, this adapters of them.
#pragma once

#include <vector>

#include "core/watch.h"
#include "model/model.h"
#include "text/corpus.h"
#include "train/options.h"

namespace moe {

// A usage error where @tune is of experts and the model has none.
void check_has_experts(const ModelConfig&, const TrainOptions&);

// Of each MoE layer, measured on the micro-batches that the run begins with, by forwards without
// gradients that route as an evaluation does, without noise and before any drop. Of experts with
// as many rows the first are taken. Usage errors: a dense model, one whose experts choose their
// tokens, experts that lie on several processes.
std::vector<HotLayer> hot_experts(Model&, const TrainOptions&, const Corpus&, const Watch& = {});

// Tokens that it reads at most, unless a micro-batch is larger.
constexpr int64_t kHotTokens = 16384;

}  // namespace moe
