// Weigh stage: scores of the chosen to combine weights. Unselected slots weigh 0.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "moe/routing.h"

namespace moe {

// w = scale * s[choice], divided by the sum over the token's chosen (+ 1e-20) when renormalised:
// before any drop, so that a token losing one expert gets less than its share (GShard, Mixtral), or
// over the kept only, so that the rest takes its place (DeepSpeed).
struct ChosenScores {
  static constexpr std::string_view kName = "scores";
  enum class Renormalise { never, before_drop, after_drop };
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("renormalise", s.renormalise);
    v("scale", s.scale);
  }
  Renormalise renormalise = Renormalise::never;
  float scale = 1;
};
// w = softmax over the token's chosen scores.
struct ChosenSoftmax {
  static constexpr std::string_view kName = "softmax";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// w = softmax over the tokens of the scope that the expert chose: its weights add up to 1 for each
// expert, so each is about 1/k and shrinks with the scope.
struct TokenSoftmax {
  static constexpr std::string_view kName = "token_softmax";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// w = 1, whatever the scores (hash routing).
struct UnitWeight {
  static constexpr std::string_view kName = "one";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// w = 1 + scale_e s_e, scale_e learned from 0 on: what is cut out of a dense network starts as the
// network's own part (CMoE, arXiv 2502.04416, eq. 9).
struct OnePlusScaled {
  static constexpr std::string_view kName = "one_plus_scaled";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// w = scale_e p_e, p the chosen scores divided by their sum (+ 1e-20), scale_e learned from 1 on
// (Gemma 4: transformers:gemma4/modeling_gemma4.py, Gemma4TextRouter).
struct ScaledScores {
  static constexpr std::string_view kName = "scaled_scores";
  template <class V, class S>
  static void fields(V&, S&) {}
};
// w = softmax over the scores near the best of those that the choices before left, of this choice
// (ops::weigh_near_best_forward). Where choices are drawn, three in four of those that are not the
// best weigh a third of it, which the gradient knows nothing of.
struct NearSoftmax {
  static constexpr std::string_view kName = "near_softmax";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("eps", s.eps);
  }
  float eps = 1e-2f;
};
// w = sigmoid of the chosen raw scores, divided by their sum (+ 1e-20) where `renormalise`: a bias
// of the choice is one of logits then, not of what weighs (Kolibri: transformers:kolibri1/
// modeling_kolibri1.py, Kolibri1TopKRouter).
struct ChosenSigmoids {
  static constexpr std::string_view kName = "sigmoids";
  template <class V, class S>
  static void fields(V& v, S& s) {
    v("renormalise", s.renormalise);
  }
  bool renormalise = false;
};
using WeighStage = std::variant<ChosenScores, ChosenSoftmax, TokenSoftmax, UnitWeight,
                                OnePlusScaled, ScaledScores, NearSoftmax, ChosenSigmoids>;

// Whether experts have a factor each that is learned, and from what number on.
bool has_expert_scale(const WeighStage&);
float first_expert_scale(const WeighStage&);

// Whether the weights of one chosen expert are 1 whatever the logits are, so that the router gets
// no gradient.
bool constant_when_alone(const WeighStage&);
// Whether ops::weigh_kept_forward follows the drops; the scale must be 1 then (the division would
// undo it).
bool renormalises_after_drop(const WeighStage&);

// Fills weights, before any drop (for after_drop: not yet divided). Reads scores (but for
// UnitWeight), choice, selected; scopes (TokenSoftmax), scale (has_expert_scale).
void weigh_forward(Run&, Routing&, const WeighStage&);
// ds[n, choice] += dw through the weighing.  ds [N,E] f32; dw [N,K]
void weigh_backward_acc(Run&, Tensor ds, Tensor dw, const Routing&, const WeighStage&);

// scale.grad[choice] += dw times what the factor is of, tokens in order; nothing without one.
// scale [E]; dw [N,K]
void weigh_scale_backward(Run&, Param& scale, Tensor dw, const Routing&, const WeighStage&);

}  // namespace moe
