// How a model is run over a text, as `generate`, `chat`, `score` and `inspect` may all be asked
// for: by which routing, by how many experts, in which dtype.
#pragma once

#include <cstdint>
#include <optional>

#include "model/model.h"

namespace moe {

// The stages of an evaluation; empty for a model that does not route. `routing` absent:
// default_eval. `top_k_experts`: experts a token takes, weighed by the recipe's own stage; 0: the
// model's number. Fails (usage) for a number that the model's experts or its recipe do not allow,
// and for either of a model that does not route.
RoutingSpec evaluation_spec(const ModelConfig&, std::optional<EvalRouting> routing,
                            int64_t top_k_experts);

// What the products of a model compute in when nobody says: bf16 where most numbers of its matrices
// are of a 2-byte type and the machine multiplies such, else f32.
DType natural_dtype(const Model&);
// Whether more than half of the matrices' numbers take 2 bytes or less.
bool is_compact(const Model&);
// Whether most of the matrices' numbers are quantised, so that products are integers.
bool mostly_quantised(const Model&);

}  // namespace moe
