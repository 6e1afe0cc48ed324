// AdamW over a list of parameters: owns the moments, clips by the norm of the whole gradient. The
// update itself is ops::adamw_step.
#pragma once

#include <vector>

#include "tensor/param.h"
#include "tensor/run.h"
#include "train/options.h"

namespace moe {

class Optimizer {
 public:
  // Of parameters that outlive it and have gradients (train/trainable.h); moments start at zero.
  // params[i] learns at rates[i] times the learning rate; no rates: all at 1.
  Optimizer(std::vector<Param*> params, const TrainOptions&, std::vector<double> rates = {});

  // Norm of the whole gradient, summed tensor by tensor in their order. Fails, naming the first
  // parameter, when a gradient is not finite.
  double grad_norm(Run&) const;
  // One update (step counts from 1) with the gradient clipped to options.clip; afterwards every
  // gradient counts as zero (Param::grad_is_zero).
  void update(Run&, int64_t step, double lr, double grad_norm);

  const std::vector<Param*>& params() const { return params_; }
  // Moments of params()[i], its shape, f32; owned here.
  const Tensor& m(size_t i) const { return m_[i]; }
  const Tensor& v(size_t i) const { return v_[i]; }

 private:
  std::vector<Param*> params_;
  TrainOptions options_;
  std::vector<double> rates_;
  Arena memory_;
  std::vector<Tensor> m_, v_;
};

}  // namespace moe
