// What a model's routers do on texts: runs the model over windows of each domain and counts
// (analyze/data/layer_counts.h).
#pragma once

#include <functional>
#include <optional>

#include "analyze/data/report.h"
#include "model/model.h"
#include "text/corpus.h"
#include "text/tokenizer.h"

namespace moe {

struct RoutingStatsOptions {
  int64_t tokens = 100000;  // of each domain at most, in windows spread evenly over it; 0: all
  int64_t window = 0;       // tokens; 0: 2048, or the model's context where that is shorter
  int64_t sample = 256;     // tokens of a domain's piece of text, from the window in its middle
  std::optional<EvalRouting> routing;  // absent: default_eval
  int64_t top_k_experts = 0;           // experts a token takes; 0: the model's own number
};

// Bytes that routing_report() takes beside what forwards over a window take of each of `models`
// models.
int64_t reporting_bytes(const ModelConfig&, const RoutingStatsOptions&, int64_t window,
                        int64_t models);

// The figures of every MoE layer, the loss of every domain and a sample of each; a dense model has
// no layers to show. The texts are cut into windows that do not overlap; what a domain has beyond
// its last whole window is dropped, but for one that is shorter than a window. Domains of one token
// are passed over. `earlier`: another checkpoint of the same model for the saturation, or null; it
// sees the same windows. The caller names model, earlier and routing. `progress` is told how many
// windows are done; what it throws ends the work.
RoutingReport routing_report(Model&, Run&, const Tokenizer&, const Corpus&,
                             const RoutingStatsOptions&, Model* earlier = nullptr,
                             const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace moe
