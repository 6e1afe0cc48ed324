// What running models takes of memory, what of it the packed copies of mapped weights may have, and
// which experts the tokens went to.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"
#include "infer/session.h"
#include "model/cost.h"
#include "model/model.h"

namespace moe {

// A model that reads text forward, and what it holds beside its weights while it does.
struct ForwardUse {
  Model* model = nullptr;
  ForwardShape shape;
  std::optional<EvalRouting> routing = {};  // absent: default_eval
  int64_t top_k_experts = 0;                // 0: the model's own number
  int64_t cache = 0;                        // bytes of keys and values
  bool once = false;  // one forward and no more, after which no copy of an expert is kept
  // When the uses before it are over: what they held but copies is free again.
  bool in_turn = false;
};

// What the packed copies of mapped weights may take, and what the whole will.
struct MemoryPlan {
  MemoryNeed need;  // beside what the process holds already; weights in mapped files, whose pages
                    // can be dropped, are in no part
  int64_t weights = 0;    // bytes of the mapped weights; 0: the Models own their numbers
  int64_t available = 0;  // bytes
  int64_t packed = 0;     // bytes that packed copies may take
  bool larger_than_memory() const { return weights > available; }
};

// Copies of all mapped weights together may take `limits.packed`, or half of what is left beside
// everything else; `beside`: what else will be taken.
MemoryPlan plan_memory(std::span<const ForwardUse>, const MemoryNeed& beside,
                       const MemoryLimits& limits);
// The same, and gives each model its share of the budget; throws OutOfMemory (core/memory.h) with
// `advice` where the rest does not fit.
MemoryPlan settle_memory(std::span<const ForwardUse>, const MemoryNeed& beside,
                         const MemoryLimits& limits, const std::string& advice);
// Of a model that is the only one.
inline MemoryPlan settle_memory(const ForwardUse& use, const MemoryNeed& beside,
                                const MemoryLimits& limits, const std::string& advice) {
  return settle_memory(std::span(&use, 1), beside, limits, advice);
}
// What sessions that read `tokens` and together hold at most `capacity` take of a model.
ForwardUse session_use(Model&, const SessionOptions&, DType dtype, int64_t tokens, int64_t capacity,
                       int64_t sequences = 1);
// Of the copies that products of a forward make of all weights, bytes, whatever the budget.
int64_t forward_copy_bytes(const Model&, DType dtype);

// Of keys and values of `tokens` tokens in all layers, bytes.
int64_t cache_bytes(const ModelConfig&, DType dtype, int64_t tokens);

// Bytes of weights that writing one token reads, `top_k` experts of each MoE layer: of the
// embedding one row, unless it is the head too.
int64_t decode_bytes(const Model&, int64_t top_k);

// Bytes of the cache that a token at `position` reads: the keys and values that it sees in all
// layers, and states.
int64_t context_bytes(const ModelConfig&, DType dtype, int64_t position);

// How few experts took most of the tokens.
struct HotSet {
  struct Part {
    double share;         // of the rows
    int64_t experts = 0;  // the fewest that together took this share
    int64_t bytes = 0;    // of their weights
  };
  int64_t experts = 0, bytes = 0, rows = 0;  // of all MoE layers together
  std::vector<Part> parts;                   // 50, 90 and 99%
};
// `rows`: of each expert [E] of each MoE layer in order (ModelRunner::expert_rows); empty: no text
// was read.
HotSet hot_set(const Model&, const std::vector<std::vector<int64_t>>& rows);

}  // namespace moe
