// Whether a training run fits, asked twice: before its weights are made or read, and once all that
// it stands on is there.
#pragma once

#include <string>

#include "core/memory.h"
#include "model/model.h"
#include "train/options.h"

namespace moe {

// Before a model of this shape is made. Throws OutOfMemory, saying what to lower. `beside`: what
// else the run will take.
void check_before_weights(const ModelConfig&, const TrainOptions&, const MemoryLimits&,
                          const MemoryNeed& beside = {});
// Of what is still to come once weights, texts and the teacher (null: none), who gets his budget,
// are there: refused likewise; else the estimate in words, for --show-memory. `document`: mean
// tokens of the text's documents (mean_document, text/loader.h); 0: no row is cut.
std::string check_before_training(const Model&, const TrainOptions&, const MemoryLimits&,
                                  Model* teacher = nullptr, int64_t document = 0);
// Of adapters trained over a model that lies in its file: with "file", the pages of it that end up
// in memory, which a limit does not count.
MemoryNeed adapter_need(const Model&, const TrainOptions&);

}  // namespace moe
