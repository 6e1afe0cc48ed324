// The head with its loss. Logits are large, so they are made a chunk of rows at a time; backward makes them again unless all of them were small enough to keep.
#pragma once

#include <span>

#include "ops/ops.h"

namespace moe {

// Views into run.saved.
struct HeadSaved {
  Tensor x;       // [N,D] A
  Tensor lse;     // [N] f32
  Tensor logits;  // [N,V] f32, absent when they were too large to keep
};

// out [N,V] f32; x [N,D] A; weight [V,D]
void head_logits(Run&, Tensor out, Tensor x, Param& weight);
// nll [N] f32: -log p(target), 0 where ops::kIgnoreTarget.  x [N,D] A
void head_loss_forward(Run&, Tensor nll, Tensor x, Param& weight, std::span<const int32_t> targets, HeadSaved&);
// dx [N,D] f32: gradient of scale * sum(nll)
void head_loss_backward(Run&, Tensor dx, Param& weight, std::span<const int32_t> targets, float scale, const HeadSaved&);

}  // namespace moe
