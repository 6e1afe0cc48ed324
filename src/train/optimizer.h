// AdamW over the parameters of a model that have gradients: owns the moments, clips by the norm of the whole gradient. The update itself is ops::adamw_step.
#pragma once

#include <vector>

#include "model/model.h"
#include "train/options.h"

namespace moe {

class Optimizer {
 public:
  // Gives the model gradients; moments start at zero. A parameter without a gradient, such as a buffer, has none and is left alone.
  Optimizer(Model&, const TrainOptions&);

  // Norm of the whole gradient, summed tensor by tensor in the order of params(). Fails, naming the first parameter, when a gradient is not finite.
  double grad_norm(Run&) const;
  // One update (step counts from 1) with the gradient clipped to options.clip; afterwards every gradient counts as zero (Param::grad_is_zero).
  void update(Run&, int64_t step, double lr, double grad_norm);
  void zero_grads();

  // Moments of params()[i], its shape, f32, absent where it has no gradient; owned here.
  const Tensor& m(size_t i) const { return m_[i]; }
  const Tensor& v(size_t i) const { return v_[i]; }
  Model& model() const { return *model_; }

 private:
  Model* model_;
  TrainOptions options_;
  Arena memory_;
  std::vector<Tensor> m_, v_;
};

}  // namespace moe
