// Models larger than memory: what the packed copies of mapped weights may take, and which experts the tokens went to.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace moe {

// Of a model whose weights lie in a mapped file.
struct MemoryPlan {
  int64_t weights = 0;    // bytes of the mapped weights; 0: the Model owns its numbers
  int64_t available = 0;  // bytes
  int64_t packed = 0;     // bytes that packed copies may take
  bool larger_than_memory() const { return weights > available; }
};

// `cache`: bytes of keys and values to come. `packed` is half of what is available beside them.
MemoryPlan plan_memory(const Model&, int64_t available, int64_t cache);
// Of keys and values of `tokens` tokens in all layers, bytes.
int64_t cache_bytes(const ModelConfig&, DType dtype, int64_t tokens);

// Bytes of weights that writing one token reads, `top_k` experts of each MoE layer: of the embedding one row, unless it is the head too.
int64_t decode_bytes(Model&, int64_t top_k);

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
// `rows`: of each expert [E] of each MoE layer in order (Session::expert_rows).
HotSet hot_set(Model&, const std::vector<std::vector<int64_t>>& rows);

}  // namespace moe
