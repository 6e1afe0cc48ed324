// What a model costs by its configuration alone: parameters, arithmetic and memory. No model is built. Formulas: the usual ones, written above each function.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace moe {

// How many numbers each part of the model holds. Embeddings count as active; a tied head is counted once.
struct ParamCount {
  int64_t embedding = 0;
  int64_t positions = 0;  // learned positions
  int64_t head = 0;       // 0 when tied
  int64_t norms = 0;      // of the blocks and the final one; QK-norms belong to attention
  int64_t attention = 0;
  int64_t dense_ffn = 0;
  int64_t experts = 0;  // routed ones
  int64_t experts_active = 0;
  int64_t shared = 0;
  int64_t router = 0;

  int64_t total() const { return total_without_experts() + experts; }
  int64_t active() const { return total_without_experts() + experts_active; }

 private:
  int64_t total_without_experts() const { return embedding + positions + head + norms + attention + dense_ffn + shared + router; }
};
ParamCount count_params(const ModelConfig&);

// Floating-point operations of one token's forward, a product of [1,I] with [I,O] being 2 I O. Training is three times that.
struct FlopCount {
  double projections = 0;  // of attention
  double scores = 0;       // of attention: queries with keys, weights with values, S/2 keys on average
  double dense_ffn = 0;
  double experts = 0;  // the K chosen ones
  double shared = 0;
  double router = 0;
  double head = 0;

  double forward() const { return projections + scores + dense_ffn + experts + shared + router + head; }
  double training() const { return 3 * forward(); }
};
// For sequences of `context` tokens.
FlopCount count_flops(const ModelConfig&, int64_t context);
// Forward and backward of `tokens` tokens of which the experts of all MoE layers together saw `expert_rows` rows.
double training_flops(const ModelConfig&, int64_t context, int64_t tokens, int64_t expert_rows);

struct MemoryCount {
  int64_t weights_f32 = 0;
  int64_t weights_bf16 = 0;
  int64_t training_f32 = 0;  // masters, gradients, two moments, and the copies packed for products; without activations
  int64_t training_bf16 = 0;
  int64_t kv_per_token_bf16 = 0;  // keys and values of one token in all layers
};
MemoryCount count_memory(const ModelConfig&);

struct ModelCost {
  ParamCount params;
  FlopCount flops;
  MemoryCount memory;
};
ModelCost count_cost(const ModelConfig&, int64_t context);

}  // namespace moe
