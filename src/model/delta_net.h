// Linear attention by the gated delta rule (Gated DeltaNet, arXiv 2412.06464; as Qwen3-Next has it,
// transformers:qwen3_next/modeling_qwen3_next.py): in place of attention, with a state of fixed
// size in place of keys and values.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/kv_cache.h"
#include "moe/norm.h"

namespace moe {

// qkv = silu(conv(q x, k x, v x));  o = delta rule of qkv, by the token's decay and strength;
// y = o_proj (norm(o) silu(z x)), the norm being of each head.
struct DeltaNet {
  LinearAttention shape;
  Param q, k, v, z;      // [G*C,D], [G*C,D], [H*Cv,D], [H*Cv,D]
  Param b, a;            // [H,D]: of the strength, of the decay
  Param conv;            // [2*G*C+H*Cv,J]
  Param dt_bias, a_log;  // [H]
  Norm norm;             // [Cv]
  Param o;               // [D,H*Cv]

  // Views into run.saved.
  struct Saved {
    Tensor projected, qkv;       // [N,2*G*C+H*Cv] A, before and after the convolution
    Tensor z;                    // [N,H*Cv] A
    Tensor b, a;                 // [N,H] f32
    Tensor log_decay, strength;  // [N,H] f32
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
    return {shape.key_heads, shape.value_heads, shape.key_width, shape.value_width};
  }
  // Rows of one head each.
  Tensor by_head(Tensor x) const {
    return x.reshape({x.rows() * shape.value_heads, shape.value_width});
  }
};

}  // namespace moe
