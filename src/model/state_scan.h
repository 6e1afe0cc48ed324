// Mamba-2's layer (arXiv 2405.21060, section 7; transformers:granitemoehybrid/
// modeling_granitemoehybrid.py, GraniteMoeHybridMambaLayer): in place of attention, with a state of
// fixed size in place of keys and values.
#pragma once

#include <array>
#include <vector>

#include "model/config.h"
#include "model/kv_cache.h"
#include "ops/ops.h"

namespace moe {

// u = silu(conv(xbc x));  s = the state space of u, by steps made of dt x;
// y = o norm(s silu(z x)), the norm being an RMSNorm of each group of heads, or absent. What is
// made of x is times factors (Multipliers::scan_in).
struct StateScan {
  StateSpace shape;
  Param z, xbc, dt;            // [H*P,D], [H*P+2*G*C,D], [H,D]
  Param conv, conv_bias;       // [H*P+2*G*C,J], [H*P+2*G*C] or absent
  Param dt_bias, a_log, skip;  // [H]
  float eps = 1e-5f;
  Param norm;  // [H*P], or absent
  Param o;     // [D,H*P]
  std::array<float, 5> factors = {1, 1, 1, 1, 1};

  // Views into run.saved.
  struct Saved {
    Tensor projected, xbc;     // [N,H*P+2*G*C] A, before and after the convolution
    Tensor z, scanned, gated;  // [N,H*P] A
    Tensor dt;                 // [N,H] f32
    Tensor chunks;             // [*,H*P*C] f32, absent where nothing goes back
    std::vector<Tensor> rstd;  // [N] f32 of each group that is normalised
  };

  // y [N,D] f32; x [N,D] A. With a cache the states of `layer` are there, and go on there.
  void forward(Run&, Tensor y, Tensor x, const Pass&, int64_t layer, Saved&);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache.
  void backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const Saved&);

 private:
  ops::StateHeads heads() const { return {shape.heads, shape.groups, shape.width, shape.states}; }
  // Of a tensor [N,H*P] the columns of a group.
  Tensor of_group(Tensor x, int64_t group) const {
    const int64_t width = shape.values() / shape.groups;
    return x.slice_cols(group * width, (group + 1) * width);
  }
  // What is made of a token, or its gradients: z [N,H*P], xbc [N,H*P+2*G*C], dt [N,H].
  void multiply(Run&, Tensor z, Tensor xbc, Tensor dt) const;
  Param norm_of(int64_t group) const;
  void norm_forward(Run&, Tensor y, const Saved&) const;
  void norm_backward(Run&, Tensor dx, Tensor dy, const Saved&);
};

}  // namespace moe
