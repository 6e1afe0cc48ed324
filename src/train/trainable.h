// What an optimizer moves of a model: its own parameters, or adapters of its matrices or of its hot
// experts' (train/hot_experts.h), or only its routers.
//
// An adapter is a low-rank term of a matrix (model/adapters.h), W + s B A with A [r,I], B [O,r] and
// s = alpha / rank (Hu et al., "LoRA", arXiv 2106.09685); a bank of experts has one for each. W is
// not touched, and needs neither gradient nor f32. A is drawn uniformly within 1 / sqrt(I), as PEFT
// does, and B starts at zero, so that the first step sees the model it was started from. Rows of
// tokens stand apart as f32, in the place of the embedding's own, and start as those.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/adapters.h"
#include "model/model.h"
#include "train/options.h"

namespace moe {

// Whether a run changes this parameter's own numbers: by a gradient, or, as the bias and the
// threshold of a router, by a rule of its own.
bool moves_whole(const Param&, Tune);

class Trainable {
 public:
  // Gives gradients to what is trained; hangs adapters where they are, until it is destroyed. What
  // moves of a bound model becomes its own.
  Trainable(Model&, const TrainOptions&);
  ~Trainable();
  Trainable(const Trainable&) = delete;
  Trainable& operator=(const Trainable&) = delete;

  // What the optimizer moves, in a fixed order.
  const std::vector<Param*>& params() const { return params_; }
  std::span<const std::unique_ptr<Adapter>> adapters() const { return adapters_->all(); }
  std::span<const std::unique_ptr<TokenRows>> token_rows() const { return adapters_->rows(); }
  // The adapters stay with the model.
  void leave_adapters();
  // Every gradient counts as zero.
  void zero_grads();

 private:
  explicit Trainable(Model&);  // so that what fails on the way takes the adapters off again
  void add_adapter(Param& base, const TrainOptions&, RngKey key);

  Model* model_;
  std::shared_ptr<Adapters> adapters_;
  std::vector<Param*> params_;
};

// What of the model is trained, part by part, in a fixed order; buffers are in no part.
struct TrainedPart {
  std::string_view name;  // "attention"
  int64_t total = 0;      // numbers the part holds
  int64_t trained = 0;    // numbers that are moved: the part's own, or those of its adapters
};
std::vector<TrainedPart> trained_parts(const Model&, const TrainOptions&);

// What a Trainable and its optimizer add to the memory of a model of this shape, bytes.
struct TrainedBytes {
  int64_t gradients = 0;  // of the model's own parameters
  int64_t moments = 0;    // of whatever the optimizer moves: one where Muon does, else two
  int64_t adapters = 0;   // with their gradients
};
TrainedBytes trained_bytes(const Model& shapes, const TrainOptions&);

// For each of `params`, which a Trainable gave of a model of this width, how many times the
// learning rate it learns at: lr_times of its part, and, where options.lr_width = W is another, of
// all matrices that rows are multiplied by
//   W / width            where AdamW moves them (Yang et al., "Tensor Programs V", arXiv
//   2203.03466,
//                        table 3): its steps have one length a number, so what they do to an output
//                        grows with the row
//   sqrt(W / width)      where Muon does: its steps have singular values of sqrt(width)
// Usage error for a part in options.lr_times that none of them belongs to.
std::vector<double> lr_factors(const std::vector<Param*>& params, const TrainOptions& options,
                               int64_t width);

}  // namespace moe
