// What the verbs print that make one model out of others.
#pragma once

#include "jobs/new_model.h"

namespace moe::cli {

// What became of each part.
void print_parts(const std::vector<PartFate>&);
// The result in one line, and the type of its weights.
void print_result(const Made&);
// "weights: q4_1, as most of dense.gguf is", and below it what became something else, and why.
void print_weights(const ResultType&, const std::vector<ConvertedRow>& rows);

}  // namespace moe::cli
