// Hyper-connections: several residual streams beside one another, of which a sublayer sees a sum
// and to each of which it gives, weighted by the token (ops::HyperShape).
#pragma once

#include "ops/ops.h"

namespace moe {

// Of one sublayer, or of the end of the model, where streams are summed up and nothing follows.
// With H the streams of a token one behind another, z = weight (H / rms(H)), and pre, post and comb
// are made of z (ops::hyper_weights_forward).
struct HyperConnection {
  ops::HyperShape shape;
  float norm_eps = 1e-5f;
  Param weight;  // [W,SD]
  Param base;    // [W]
  Param scale;   // [1] at the end, else a number for each of pre, post and comb

  // Views into run.saved.
  struct Saved {
    Tensor h;     // [N,SD] f32, the streams: the caller's
    Tensor z, w;  // [N,W] f32
    Tensor y;     // [N,D] f32, what the sublayer gave: the caller's
  };

  // x = sum_s pre_s h_s.  x [N,D] f32; h [N,SD] f32, alive until backward
  void collapse(Run&, Tensor x, Tensor h, Saved&);
  // out_k = post_k y + the streams, mixed where they mix.  out [N,SD] f32; y [N,D] f32, alive until
  // backward
  void spread(Run&, Tensor out, Tensor y, Saved&) const;
  // dh [N,SD]: on entry the gradient of `out`, on return what of the streams' comes past the
  // sublayer.  dy [N,D] f32, written; dw [N,W] f32, of which post's and comb's are written
  void spread_backward(Run&, Tensor dh, Tensor dy, Tensor dw, const Saved&) const;
  // Adds to dh what comes through x and through the weights, whose gradients dw holds but for
  // pre's.  dx [N,D] f32; dw [N,W]
  void collapse_backward_acc(Run&, Tensor dh, Tensor dw, Tensor dx, const Saved&);
};

}  // namespace moe
