// AdamW over a list of parameters, or Muon over the matrices among them: owns the moments, clips by
// the norm of the whole gradient. The updates are ops::adamw_step and train/muon.h. Of several
// processes each keeps the moments of a share of every parameter, moves that share, and gets what
// the others moved (Rajbhandari et al., "ZeRO", arXiv 1910.02054, stage 1).
#pragma once

#include <vector>

#include "comm/layout.h"
#include "ops/ops.h"
#include "tensor/param.h"
#include "tensor/run.h"
#include "train/options.h"

namespace moe {

class Optimizer {
 public:
  // Of parameters that outlive it and have gradients (train/trainable.h); moments start at zero.
  // params[i] learns at rates[i] times the learning rate; no rates: all at 1.
  Optimizer(std::vector<Param*> params, const TrainOptions&, std::vector<double> rates = {},
            const comm::Layout& layout = {}, Device* device = nullptr);

  // The gradients of this process's micro-batches become those of all, as far as this process moves
  // them; what else is in them has no meaning then. Collective, as the next two are.
  void sum_grads(Run&);
  // Norm of the whole gradient, summed tensor by tensor in their order. Fails in all processes,
  // naming the first parameter, when a gradient is not finite.
  double grad_norm(Run&) const;
  // One update (step counts from 1) with the gradient clipped to options.clip; afterwards every
  // gradient counts as zero (Param::grad_is_zero).
  void update(Run&, int64_t step, double lr, double grad_norm);

  const std::vector<Param*>& params() const { return params_; }
  // The numbers of params()[i], the whole of it, that process p moves.
  Span moved_by(int p, size_t i) const;
  const comm::Layout& layout() const { return layout_; }
  // Whether params()[i] has the second moment v, too: AdamW's do, Muon's do not.
  bool keeps_squares(size_t i) const;
  // Moments f32 of what of params()[i] this process moves, in one dimension; of a process alone in
  // its shape. Owned here.
  const Tensor& m(size_t i) const { return m_[i]; }
  const Tensor& v(size_t i) const { return v_[i]; }

 private:
  // Of params()[i] what this process moves, as numbers of its part that is here.
  Span moved_here(size_t i) const;
  // What this process moves of `t`, which has the shape of params()[i] as it is here.
  Tensor of_this_process(size_t i, const Tensor& t) const;
  void update_adamw(Run&, size_t i, const ops::AdamW& how);
  // A parameter, and of `how` its lr, decay and scale.
  struct Moved {
    size_t param;
    ops::AdamW how;
  };
  void update_muon(Run&, std::span<const Moved> all);
  Tensor direction(Run&, const Moved& of);
  // What the others moved of `t`, likewise.
  void gather(size_t i, const Tensor& t);
  // Whose gradients of params()[i] are summed.
  const comm::Group& group_of(size_t i) const;

  std::vector<Param*> params_;
  comm::Layout layout_;
  TrainOptions options_;
  std::vector<double> rates_;
  Arena memory_;
  std::vector<Tensor> m_, v_;
};

}  // namespace moe
