// Parts that few families' models have: what a model has of them, and what a family's row knows.
#pragma once

#include <string>

#include "model/config.h"

namespace moe {

// What a model has of the parts that few families' models have, but for those that are known; empty
// when it has none.
struct KnownParts {
  bool gemma4 = false, head_bias = false, longrope = false, query_growth = false, caps = false,
       nanochat = false, bare_norms = false, moe_out_norm = false, shared_average = false,
       xielu = false, halves = false, head_gates = false, streams = false, proportional = false,
       llama4 = false, clips = false, states_pre_norm = false, scan_beside = false,
       values_apart = false, kv_heads_apart = false, heads_apart = false, parts_apart = false,
       softplus_gates = false, norm_gates = false, longcat = false, blocks = false,
       shared_latents = false, selective = false;
};
std::string what_few_have(const ModelConfig&, KnownParts known = {});
// What sets models apart whose layers are one sublayer alone.
inline constexpr const char* kHalvesInWords = "some of its layers are attention or an FFN alone";

}  // namespace moe
