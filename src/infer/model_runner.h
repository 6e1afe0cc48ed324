// One forward over rows of many sequences: a prompt, a chunk of one and single tokens of others
// side by side. What is drawn from the logits and when a text ends is the business of others
// (infer/generate.h); which rows come together is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "model/adapters.h"
#include "model/model.h"

namespace moe {

struct SessionOptions {
  // Absent: default_eval. Models whose experts choose their tokens generate by
  // EvalRouting::threshold, which has to be asked for because it is not what they train with.
  std::optional<EvalRouting> routing;
  int64_t top_k_experts = 0;         // experts a token takes; 0: the model's own number
  std::optional<DType> cache_dtype;  // of keys and values; absent: cache_dtype()
};
// What keys and values are kept in: as asked, else as the products compute, but of half precision
// where weights are quantised, whose products round the activations more: bf16 where that is
// multiplied, else f16.
DType cache_dtype(const SessionOptions&, const Model&, DType compute);
// Fails (usage) for a model that writes a text only by a routing that has to be asked for, when
// none was: expert choice is replaced by something else there.
void check_asked_for(const ModelConfig&, std::optional<EvalRouting> asked);

// What a step is to read of one sequence.
struct StepRows {
  int32_t slot = 0;              // KvCache::open
  std::span<const int32_t> ids;  // that follow what the sequence holds; at least one
  int64_t logits = 1;  // after so many of the last of them logits are wanted; 0: a prompt goes on
  bool only_read = false;  // a prompt's, none of which is drawn or judged (Pass::only_read)
};

// What a step may be asked for beside logits (moe::Pass).
struct StepRouting {
  // Told what each MoE layer did with the rows of the step, laid end to end; null: nobody asks.
  const std::function<void(int64_t layer, const MoeLayerSaved&)>* on_routing = nullptr;
  // Choices that the routers take instead of their own: [N,K] i32 for each MoE layer in order.
  const std::vector<Tensor>* recorded = nullptr;
};

// Owns the cache; the Model and the Run must outlive it. For one thread at a time; several runners
// of one Model, each with a Run of its own, may step at the same time.
class ModelRunner {
 public:
  // `capacity`: tokens of all sequences together, in whole blocks (KvCache). Fails (usage) for a
  // routing that depends on later tokens.
  ModelRunner(Model&, Run&, int64_t capacity, const SessionOptions& options = {});

  const Model& model() const { return model_; }
  // Adapters of the model that texts may ask for, which outlive this. No other runner of the model
  // steps beside one that has some.
  void set_adapters(AdapterChoice* adapters) { adapters_ = adapters; }
  int32_t adapters() const { return adapters_ != nullptr ? adapters_->count() : 0; }
  // What the next steps compute with; 0: none of them.
  void choose_adapter(int32_t which) {
    if (adapters_ != nullptr) adapters_->choose(which);
  }
  KvCache& cache() { return cache_; }
  // The rows of each sequence, none of which comes twice, through one forward. A sequence's logits
  // are the same whatever stands beside it, in bits where the products keep a row's
  // (ops::products_keep_row_bits). Where it fails nothing has changed. logits [wanted,V], in the
  // order of `rows`
  void step(std::span<float> logits, std::span<const StepRows> rows,
            const StepRouting& routing = {});
  // Choices of a token in each MoE layer [K of the matrices in StepRouting]; 0 of a dense model.
  int64_t slots() const;
  int threads() const { return run_.threads; }
  // Rows that each expert [E] of each MoE layer in order computed since the runner began.
  const std::vector<std::vector<int64_t>>& expert_rows();

 private:
  void forward(std::span<float> logits, std::span<const StepRows> rows, const StepRouting&);
  void add_up_rows();

  Model& model_;
  Run& run_;
  RoutingSpec routing_;
  KvCache cache_;
  AdapterChoice* adapters_ = nullptr;
  std::vector<std::vector<int64_t>> expert_rows_;
  Arena counts_memory_;
  Tensor counts_;        // [M,E] i32, where the run computes: rows that are not in expert_rows_
  int64_t counted_ = 0;  // pairs in counts_ at most
};

}  // namespace moe
