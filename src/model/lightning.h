// Lightning attention (TransNormer, arXiv 2307.14995; MiniMax-01, arXiv 2501.08313, section 2.2;
// transformers:minimax/modeling_minimax.py, MiniMaxLightningAttention): linear attention whose
// heads decay at fixed rates, in place of attention, with a state of fixed size in place of keys
// and values.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/kv_cache.h"
#include "moe/norm.h"

namespace moe {

// s_h = 2^(-8 (h + 1) / H) (1 - l / (L - 1 + 1e-5) + 1e-5) of layer l of L: the more a head forgets
// the lower the layer is.
double lightning_slope(int64_t head, int64_t heads, int64_t layer, int64_t layers);

// (v', k', q') = act((v x, k x, q x));  S = e^-s_h S + v' k'^T of each head, a = S q';
// y = o (norm(a) sigmoid(z x)), the norm being one of all heads together.
//
// The state space of Mamba-2 computes it (ops::state_space_forward): its values are v', what writes
// and reads its states k' and q' of a group for each head, its step is 1 and its rate s_h, and
// nothing goes past the states.
struct Lightning {
  int64_t heads = 1, width = 1;  // H, C
  ops::Act act = ops::Act::silu;
  std::vector<float> log_slopes;  // [H]
  Param q, k, v, z;               // [H*C,D]
  Norm norm;                      // [H*C]
  Param o;                        // [D,H*C]

  // Views into run.saved.
  struct Saved {
    Tensor projected, vkq;  // [N,3*H*C] A: values, keys, queries, before and behind the activation
    Tensor z, a, normed;    // [N,H*C] A
    Tensor chunks;          // [*,H*C*C] f32, absent where nothing goes back
    Norm::Saved norm;
  };

  // y [N,D] f32; x [N,D] A. With a cache the states of `layer` are there, and go on there.
  void forward(Run&, Tensor y, Tensor x, const Pass&, int64_t layer, Saved&);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache.
  void backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const Saved&);

 private:
  int64_t values() const { return heads * width; }
  ops::StateHeads state_heads() const { return {heads, heads, width, width}; }
  // Of a tensor [N,3*H*C].
  Tensor part(Tensor x, int64_t i) const { return x.slice_cols(i * values(), (i + 1) * values()); }
};

}  // namespace moe
