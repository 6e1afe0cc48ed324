// What a training run takes of memory, estimated from its options before any of it is taken.
#pragma once

#include <optional>
#include <string>

#include "core/memory.h"
#include "model/cost.h"
#include "model/model.h"
#include "train/options.h"

namespace moe {

// Which of its memory a run has taken already.
enum class Held { nothing, weights };

// Of the masters, gradients, moments, packed copies, activations and scratch of a run. Every choice
// that can find room counts as a row. `teacher`: null: none; its packed copies are not in it
// (infer/memory_plan.h). Weights that adapters hang on lie in their file and take nothing;
// `quantised`: they are widened piece by piece, and no copy of them is kept. `document`: as in
// TrainingShape; of preference pairs 0.
MemoryNeed training_need(const ModelConfig&, const TrainOptions&, Held,
                         const Model* teacher = nullptr, bool quantised = false,
                         int64_t document = 0);

// What training all of a model holds by its configuration alone: count_training_memory, but that
// Muon keeps one moment where AdamW has two, and takes room for its own products.
TrainingMemory training_memory(const ModelConfig&, const TrainingShape&, OptimizerKind);

// What to lower for a run that needs more than `left` bytes, fields marked: a batch that fits with
// the accumulate that makes up for it, recompute, or the model. `beside`: what else the run needs;
// `document` as above.
std::string training_advice(const ModelConfig&, const TrainOptions&, Held, const MemoryNeed& beside,
                            int64_t left, int64_t document = 0);

}  // namespace moe
