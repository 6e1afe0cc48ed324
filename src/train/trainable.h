// What an optimizer moves of a model: its own parameters, or adapters of its matrices, or only its
// routers.
//
// An adapter is another way of writing a matrix: W = W0 + s B A with A [r,I], B [O,r] and s = alpha
// / rank (Hu et al., "LoRA", arXiv 2106.09685); a bank of experts has one for each. So the forward
// knows nothing of it: W is worked out anew after every step, and from the gradient dW that the
// backward leaves
//   dA = s B^T dW,   dB = s dW A^T.
// A is drawn uniformly within 1 / sqrt(I), as PEFT does, and B starts at zero, so that the first
// step sees the model it was started from, to the bit.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "train/options.h"

namespace moe {

struct Adapter {
  Param* base = nullptr;  // [O,I] or [E,O,I]; with a gradient but without moments
  Tensor frozen;          // W0, of its shape
  // [r,I] and [O,r], or [E,r,I] and [E,O,r]; called as base, with ".lora_A" and ".lora_B"
  Param a, b;
};

class Trainable {
 public:
  // Gives gradients to what is trained and to what adapters hang on.
  Trainable(Model&, const TrainOptions&);

  // What the optimizer moves, in a fixed order.
  const std::vector<Param*>& params() const { return params_; }
  std::span<const std::unique_ptr<Adapter>> adapters() const { return adapters_; }
  float scale() const { return scale_; }  // s
  // After the backwards of a step: the adapters' gradients from those of their matrices, which then
  // count as zero.
  void gather_grads(Run&);
  // After an update: every adapted matrix from its adapter.
  void apply(Run&);
  // Every gradient counts as zero.
  void zero_grads();

 private:
  void add_adapter(Param& base, int64_t rank, RngKey key);
  Tensor scaled_b(Run&, const Adapter&) const;

  Model* model_;
  float scale_;
  Arena memory_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
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
  int64_t moments = 0;    // two of whatever the optimizer moves
  int64_t adapters = 0;   // with their gradients, and the matrices that they started from
};
TrainedBytes trained_bytes(const Model& shapes, const TrainOptions&);

// For each of `params`, which a Trainable gave, how many times the learning rate it learns at.
// Usage error for a part in options.lr_times that none of them belongs to.
std::vector<double> lr_factors(const std::vector<Param*>& params, const TrainOptions& options);

}  // namespace moe
