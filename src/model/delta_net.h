// Linear attention by the gated delta rule (Gated DeltaNet, arXiv 2412.06464; as Qwen3-Next has it,
// transformers:qwen3_next/modeling_qwen3_next.py; Kimi Delta Attention, arXiv 2510.26692,
// transformers:kimi_linear/modeling_kimi_linear.py; as Ling 3.0 has it,
// transformers:bailing_hybrid/modeling_bailing_hybrid.py): in place of attention, with a state of
// fixed size in place of keys and values.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/kv_cache.h"
#include "moe/norm.h"

namespace moe {

// qkv = silu(conv(q x, k x, v x));  o = delta rule of qkv, by the token's decay and strength;
// y = o_proj (norm(o) silu(z x)), the norm being of each head. With decays of channels (R =
// gate_width) these are made by a (a_in x), gates by z (z_in x), and y = o_proj (norm(o)
// sigmoid(z (z_in x))); without a_in and z_in, where R = 0, by a x and z x. Strengths are up to 1,
// or 2 (LinearAttention::negative).
struct DeltaNet {
  LinearAttention shape;
  Param q, k, v, z;      // [G*C,D], [G*C,D], [H*Cv,D], [H*Cv,D] or [H*Cv,R]
  Param b, a;            // [H,D]; [H,D], [H*C,D] or [H*C,R]: of the strength, of the decay
  Param z_in, a_in;      // [R,D], absent without R
  Param conv;            // [2*G*C+H*Cv,J]
  Param dt_bias, a_log;  // [H] or [H*C], [H]
  Norm norm;             // [Cv]
  Param o;               // [D,H*Cv]

  // Views into run.saved.
  struct Saved {
    Tensor projected, qkv;       // [N,2*G*C+H*Cv] A, before and after the convolution
    Tensor z;                    // [N,H*Cv] A
    Tensor z_in, a_in;           // [N,R] A, absent without R
    Tensor b, a;                 // [N,H], [N,H] or [N,H*C] f32
    Tensor log_decay, strength;  // like a, b
    Tensor chunks;               // [*,H*C*Cv] f32, absent where nothing goes back
    Tensor o, normed;            // [N,H*Cv] A
    Norm::Saved norm;
  };

  // y [N,D] f32; x [N,D] A. With a cache the states of `layer` are there, and go on there.
  void forward(Run&, Tensor y, Tensor x, const Pass&, int64_t layer, Saved&);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache.
  void backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const Saved&);

 private:
  ops::DeltaHeads heads() const {
    return {shape.key_heads, shape.value_heads, shape.key_width, shape.value_width,
            shape.by_channel()};
  }
  ops::Act gate_act() const { return shape.by_channel() ? ops::Act::sigmoid : ops::Act::silu; }
  void project(Run&, Tensor x, Saved&);
  void project_backward(Run&, Tensor dx, Tensor dprojected, Tensor dz, Tensor da, Tensor db,
                        Tensor x, const Saved&);
  void made_backward(Run&, Tensor dx, Param& out, Param& in, Tensor dy, Tensor made, Tensor x);
  // In scratch where it is of another type.
  Tensor in_type(Run&, Tensor x, DType) const;
  // Rows of one head each.
  Tensor by_head(Tensor x) const {
    return x.reshape({x.rows() * shape.value_heads, shape.value_width});
  }
};

}  // namespace moe
