// A gate behind a norm, made of few numbers that are made of what the norm gives (A.X K2;
// transformers:axk2/modeling_axk2.py, AXK2GatedRMSNorm).
#pragma once

#include "ops/ops.h"

namespace moe {

// y = n * sigmoid(up silu(down n)), n being what the norm gives
struct NormGate {
  Param down, up;  // [r,D], [D,r]

  // Views into run.saved.
  struct Saved {
    Tensor n;    // [N,D] A
    Tensor low;  // [N,r] A, before silu
    Tensor z;    // [N,D] A, before the sigmoid
  };

  // y, n [N,D] A, n in run.saved
  void forward(Run&, Tensor y, Tensor n, Saved&);
  // dn, dy [N,D] f32; dn may be dy
  void backward(Run&, Tensor dn, Tensor dy, const Saved&);
};

}  // namespace moe
