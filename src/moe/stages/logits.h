// Logits stage: a token's hidden state to one number an expert. Everything after it sees logits
// only.
#pragma once

#include <string_view>
#include <variant>

#include "ops/ops.h"

namespace moe {

// z = W x (+ c)
struct LinearLogits {
  static constexpr std::string_view kName = "linear";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("bias", s.bias);
  }
  bool bias = false;
};
// z_e = |act(g_e . x) (u_e . x)|, without a gate |act(u_e . x)|: what one neuron of the expert's
// feed-forward network puts out (CMoE, arXiv 2502.04416, section 4.3; the absolute value is its
// code's, github JarvisPei/CMoE, CMoE_model.py).
struct AnalyticLogits {
  static constexpr std::string_view kName = "analytic";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("fixed", s.fixed);
  }
  // The rows are a sketch of the experts' own, perhaps in few bits, and nothing that learns: the
  // logits are constants for the gradient.
  bool fixed = false;
};
using LogitStage = std::variant<LinearLogits, AnalyticLogits>;
// Whether logits are made of numbers that do not learn.
bool is_fixed(const LogitStage&);

// What makes the logits.
struct LogitParams {
  Param weight;  // [E,D]: W, or the gates g; the u where there is no gate
  Param up;      // [E,D]: u of AnalyticLogits with a gate, and of fixed ones times the length of
                 // what the neuron adds where the score is to say that
  Param bias;    // [E]: c of LinearLogits with a bias
  ops::Act act = ops::Act::silu;

  // Views into run.saved.
  struct Saved {
    Tensor gate, up;  // [N,E] f32, g . x and u . x of AnalyticLogits, gate absent without one
  };

  // z [N,E] f32; x [N,D] A
  void forward(Run&, Tensor z, Tensor x, const LogitStage&, Saved&);
  // dx [N,D] f32 is added to; dz [N,E] f32
  void backward_acc(Run&, Tensor dx, Tensor dz, Tensor x, const LogitStage&, const Saved&);
};

}  // namespace moe
