// Pruning: the experts of an MoE model that did least on a calibration text go, the rest stays as
// it is. Saliencies as in REAP (Lasby et al. 2025, arXiv 2510.13999): what an expert's weighted
// output adds to the stream.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/assembly.h"

namespace moe {

// What an expert counts, over the tokens that chose it: w its combine weight, f(x) its output.
enum class Saliency {
  output,     // sum of w |f(x)|
  mean,       // mean of w |f(x)|: REAP
  frequency,  // how many they are
};
const std::vector<std::string>& saliency_names();  // in this order

struct PruneOptions {
  int64_t experts = 0;  // N that stay in each MoE layer
  Saliency saliency = Saliency::output;
  int64_t window = 2048;  // tokens of a calibration sequence
  int64_t windows = 8;
  int threads = 1;
  DType compute = DType::f32;  // of the products of the calibration
  // told after each window; may throw
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct PrunedLayer {
  int64_t layer = 0;
  std::vector<double> saliency;  // [E]
  std::vector<int64_t> tokens;   // [E] that chose the expert
  std::vector<int64_t> kept;     // [N] ascending
  double lost_choices = 0;       // share of the choices that fell on experts that go
  double lost_output = 0;        // the same of the sum of w |f(x)|
};

struct Pruned {
  std::unique_ptr<Model> model;
  std::vector<PartFate> parts;
  std::vector<PrunedLayer> layers;
};

// Usage errors that need no text: a dense model, an N that leaves nothing to drop or fewer than the
// routing needs (the message says which do), a routing whose choices cannot lose experts.
void check_prune(const ModelConfig&, const PruneOptions&);
// Of `ids` the first windows * window tokens are read, each window as a text of its own. Ties go to
// the lower index; where experts are chosen by groups, each group keeps as many. The result's
// weights are views of those of `model`, which must outlive it.
Pruned prune(Model& model, std::span<const int32_t> ids, const PruneOptions&);

}  // namespace moe
