// A norm with its parameters, RMSNorm or LayerNorm.
#pragma once

#include "ops/ops.h"

namespace moe {

enum class NormKind { rms, layer };

struct Norm {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  float offset = 0;  // added to the weight
  Param weight;      // [D], absent of a norm that has none
  Param bias;        // [D], absent without bias

  // Views into run.saved.
  struct Saved {
    Tensor x;     // [N,D] the input
    Tensor mean;  // [N] f32, absent for RMSNorm
    Tensor rstd;  // [N] f32
  };

  // y [N,D] f32 or A; x [N,D] f32 or A
  void forward(Run&, Tensor y, Tensor x, Saved&);
  // dx [N,D]; dy [N,D]
  void backward(Run&, Tensor dx, Tensor dy, const Saved&);
};

}  // namespace moe
