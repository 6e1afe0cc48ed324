// What a model costs by its configuration alone: parameters, arithmetic and memory. No model is
// built. Formulas: the usual ones, written above each function.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>

#include "model/parameters.h"

namespace moe {

class Model;

// A count for each part.
struct PartCounts {
  std::array<int64_t, kParts> of{};
  int64_t& operator[](Part part) { return of[static_cast<size_t>(part)]; }
  int64_t operator[](Part part) const { return of[static_cast<size_t>(part)]; }
};

// How many layers have what in place of attention, and how many are one sublayer alone: what mixes
// tokens without an FFN, or an FFN.
struct LayerKinds {
  int64_t attention = 0, linear = 0, conv = 0, scan = 0;  // lightning attention is linear, too
  int64_t mixer_alone = 0, ffn_alone = 0;
};
LayerKinds count_layer_kinds(const ModelConfig&);

// Experts that a token takes: `top_k_experts`, or at 0 the model's own number. Beside the
// configuration, since a recipe need not allow as many to be trained.
int64_t experts_taken(const ModelConfig&, int64_t top_k_experts);

// How many numbers each part of the model holds. Embeddings count as active; a tied head is counted
// once.
struct ParamCount {
  PartCounts parts;
  int64_t experts_active = 0;  // of the routed experts, those that a token takes
  int64_t frozen = 0;          // of the parts, those of indexers, which have no gradients
  // selection biases, thresholds and sketches of the routers, constants of xIELU: not trained by
  // gradient, in no sum
  int64_t buffers = 0;
  int64_t sketch = 0;        // of the buffers, numbers of routers that score neurons by a few bits
  int64_t sketch_bytes = 0;  // of those in few bits; in f32 where rows are no whole blocks

  int64_t operator[](Part part) const { return parts[part]; }
  int64_t total() const { return std::accumulate(parts.of.begin(), parts.of.end(), int64_t{0}); }
  int64_t active() const { return total() - parts[Part::experts] + experts_active; }
};
ParamCount count_params(const ModelConfig&, int64_t top_k_experts = 0);

// Floating-point operations of one token's forward, a product of [1,I] with [I,O] being 2 I O.
// Training all of a model is three times that.
struct FlopCount {
  double projections = 0;  // of attention
  double scores = 0;  // of attention: queries with keys, weights with values, S/2 keys on average
                      // (fewer with a window, or where some are chosen), and the choice
  double dense_ffn = 0;
  double experts = 0;  // the K chosen ones
  double shared = 0;
  double router = 0;
  double head = 0;

  double forward() const {
    return projections + scores + dense_ffn + experts + shared + router + head;
  }
  double training() const { return 3 * forward(); }
};
// For sequences of `context` tokens.
FlopCount count_flops(const ModelConfig&, int64_t context, int64_t top_k_experts = 0);
// Of reading a prompt of so many tokens behind the last of which alone logits are made.
double prompt_flops(const Model&, int64_t tokens, int64_t top_k_experts = 0);
// What a run trains of the matrices that are multiplied, numbers part by part: those with a
// gradient of their own, and those of low-rank terms beside them, a pair that all experts of a
// layer share counting for each.
struct TrainedNumbers {
  PartCounts own, terms;
};
// As the model's gradients and terms say now.
TrainedNumbers trained_numbers(const Model&);
// Forward and backward of `tokens` tokens of which the experts of all MoE layers together saw
// `expert_rows` rows. A matrix that is not trained has no dW; recomputing is not counted.
double training_flops(const ModelConfig&, const TrainedNumbers&, int64_t context, int64_t tokens,
                      int64_t expert_rows);

// Bytes.
struct MemoryCount {
  int64_t weights_f32 = 0;
  int64_t weights_bf16 = 0;
  int64_t kv_per_token_bf16 = 0;  // keys and values of one token in all layers, and of indexers
  int64_t state_f32 = 0;          // of a sequence, in layers of linear attention
};
MemoryCount count_memory(const ModelConfig&);

// How a model is trained, as far as its memory depends on it.
struct TrainingShape {
  int64_t batch = 8;  // rows a micro-batch
  int64_t context = 256;
  DType dtype = DType::f32;
  bool recompute = false;
  int64_t spread = 1;    // processes that a layer's experts lie on (moe/plan.h)
  int64_t document = 0;  // mean tokens of the documents whose ends cut rows; 0: no row is cut
};

// What training holds at its fullest moment, bytes. Every choice that can find room counts as a
// row; where experts are spread each process gets as many rows as its own tokens make.
struct TrainingMemory {
  int64_t masters = 0;    // f32
  int64_t gradients = 0;  // f32
  int64_t moments = 0;    // two, f32
  // copies of the matrices in the layout and dtype of the products, one for each direction
  int64_t copies = 0;
  int64_t activations = 0;  // what backward needs
  int64_t scratch = 0;      // of the widest moment of backward

  int64_t total() const { return masters + gradients + moments + copies + activations + scratch; }
};
TrainingMemory count_training_memory(const ModelConfig&, const TrainingShape&);

// What one of `processes` that train together sends in a step of `rounds` micro-batches of its own,
// bytes, where every process's tokens are spread evenly over the experts (docs/cluster.md).
struct ExchangeCount {
  double gradients = 0;  // and the parameters that other processes moved
  double rows = 0;       // between tokens and experts
};
ExchangeCount count_exchange(const ModelConfig&, const TrainingShape&, int64_t processes,
                             int64_t rounds);

// A forward that leaves nothing behind: evaluation and generation.
struct ForwardShape {
  int64_t tokens = 0;        // of one sequence
  DType dtype = DType::f32;  // of the activations
  int64_t context = 0;       // that its keys may reach back, those of a cache; 0: its own tokens
  bool loss = false;         // the head's loss of every token follows
  int64_t logits = 0;  // or logits of so many tokens, all at once, and their losses; 0: none do
};
// What it holds at its fullest moment, bytes: activations and scratch, but no weights, no copies of
// weights and no cache. `routing`: its stages; unused by dense models. Every choice counts as a
// row.
int64_t count_forward_memory(const ModelConfig&, const ForwardShape&, const RoutingSpec& routing);

struct ModelCost {
  ParamCount params;
  FlopCount flops;
  MemoryCount memory;
};
ModelCost count_cost(const ModelConfig&, int64_t context);

}  // namespace moe
