// The head with its loss. Logits are large, so they are made a chunk of rows at a time; backward
// makes them again unless all of them were small enough to keep. Beside a teacher the loss is (1 -
// share) nll + share KL(teacher || student) over the whole vocabulary, and its logits too exist a
// chunk at a time only.
#pragma once

#include <span>

#include "ops/ops.h"

namespace moe {

// logits = x weight^T + bias, held back to cap tanh(logit / cap) where there is a cap. The
// parameters are the model's.
struct LmHead {
  Param* weight = nullptr;  // [V,D], perhaps with rows apart
  Param* bias = nullptr;    // [V], or one that is not present, or none
  float cap = 0;            // 0: none

  int64_t vocab() const { return weight->value.rows(); }
  bool biased() const { return bias != nullptr && bias->present(); }
};

// What another model of the same vocabulary made of the same rows.
struct LmHeadTeacher {
  Tensor x;         // [N,D'] A, after its final norm; alive until backward
  LmHead head;      // without a weight: nobody teaches
  float share = 0;  // of the divergence in the loss

  bool present() const { return head.weight != nullptr; }
};

// Views into run.saved.
struct LmHeadSaved {
  Tensor x;       // [N,D] A
  Tensor lse;     // [N] f32
  Tensor logits;  // [N,V] f32, absent when they were too large to keep
  LmHeadTeacher teacher;
  Tensor teacher_lse;  // [N] f32, absent without a teacher
};

// out [N,V] f32; x [N,D] A
void lm_head_logits(Run&, Tensor out, Tensor x, const LmHead&);
// nll [N] f32: -log p(target), 0 where ops::kIgnoreTarget; kl [N] f32: KL(teacher || student),
// likewise, absent without a teacher.  x [N,D] A
void lm_head_loss_forward(Run&, Tensor nll, Tensor kl, Tensor x, const LmHead&,
                          std::span<const int32_t> targets, const LmHeadTeacher&, LmHeadSaved&);
// dx [N,D] f32: gradient of scale * sum(weights . loss); weights [N], empty: all 1, as they are
// beside a teacher.
void lm_head_loss_backward(Run&, Tensor dx, const LmHead&, std::span<const int32_t> targets,
                           float scale, const LmHeadSaved&, std::span<const float> weights = {});

}  // namespace moe
