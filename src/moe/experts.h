// A bank of feed-forward experts. A dense FFN is a bank of one; a shared expert likewise.
#pragma once

#include <optional>

#include "moe/plan.h"
#include "ops/ops.h"

namespace moe {

// out_r = Wdown_e (weight_r * a_r) + weight_r * bdown_e,
//   a = act(Wgate x + bgate) * (Wup x + bup)   gated: SwiGLU and kin
//   a = act(Wup x + bup)                       not gated
//   a = xIELU(Wup x + bup)                     likewise, of a dense FFN
// or, of a dense FFN with gates, out = s Wdown a, a = act(t Wgate x) * (Wup x).
// The combine weight meets the hidden row, before `down`, so that no [R,D] output has to be kept
// for its gradient. Where it weighs what an expert is given instead (Llama 4),
//   out_r = FFN_e(weight_r x_r)
struct ExpertBank {
  Param gate, up;            // [E,F,D]; gate absent when not gated
  Param down;                // [E,D,F]
  Param gate_bias, up_bias;  // [E,F], absent without bias
  Param down_bias;           // [E,D]
  ops::Act act = ops::Act::silu;
  // The activation of a dense FFN whose factors are trained, in place of act (ops::xielu_forward).
  struct Xielu {
    Param alpha_p, alpha_n;  // [1]
    Param beta, eps;         // [1], buffers
  };
  std::optional<Xielu> xielu;  // only in a bank of one, whose rows all have the weight 1
  bool weighs_input = false;   // then every row has a weight
  float gate_factor = 1, down_factor = 1;  // t, s; likewise, and without biases

  // Forward fills those that have memory, and takes it from run.saved for the others.
  struct Saved {
    Tensor gate, up;  // [R,F] A, before the activation; gate absent when not gated
  };

  int64_t experts() const { return up.value.shape[0]; }
  int64_t width() const { return up.value.shape[1]; }
  // What hidden rows are multiplied by; absent = 1.
  Tensor weight_behind(const Rows& rows) const { return weighs_input ? Tensor{} : rows.weight; }

  // out [R,D] f32 or A
  void forward(Run&, Tensor out, const Rows&, Saved&);
  // dx [R,D] A or f32; dweight [R] f32 (absent when rows.weight is); dout [R,D] A
  void backward(Run&, Tensor dx, Tensor dweight, ops::GatheredRows dout, const Rows&, const Saved&);
  // What the first matrices multiply: the rows, or in run.scratch the rows times their weights.
  ops::GatheredRows given(Run&, const Rows&) const;
};

}  // namespace moe
