// The router: a list of stages run in order. It turns a token's hidden state into a RoutingPlan
// and, backwards, the gradient of the combine weights and of the auxiliary losses into gradients of
// its weights and its input. Everything here is f32 whatever the activations are.
#pragma once

#include <span>

#include "moe/losses/aux_loss.h"
#include "moe/plan.h"
#include "moe/stages/capacity.h"
#include "moe/stages/logits.h"
#include "moe/stages/noise.h"
#include "moe/stages/score.h"
#include "moe/stages/select.h"
#include "moe/stages/weigh.h"

namespace moe {

// The stages of one mode. Training and evaluation are two specs of one recipe
// (moe/recipes/recipes.h). Each stage is a variant; each member carries its own parameters and
// nothing reads another stage's. Order:
//   noise -> logits -> score -> select -> weigh -> second -> capacity -> weigh over the kept,
//     and beside them the auxiliary losses.
// A member names itself (kName) and lists its parameters (fields), so that JSON, `moe recipes` and
// the tests need no list of their own (moe/recipes/spec_json.h).
struct RoutingSpec {
  int64_t experts = 0;  // that the router scores: E
  // The last so many of them give a token back as it is: no weights and no rows, room without end
  // (LongCat-Flash, arXiv 2509.01322, section 2.1).
  int64_t zero_experts = 0;
  NoiseStage noise;
  LogitStage logits;
  ScoreStage score;
  SelectStage select;
  WeighStage weigh;
  SecondStage second;
  CapacityStage capacity;
  AuxLosses losses;

  int64_t slots() const { return slots_per_token(select, experts); }  // K of the matrices [N,K]
  int64_t with_weights() const { return experts - zero_experts; }
};

// f(pair, weight) of every kept pair with a zero expert, n K + choice rank being its number; where
// the CPU can reach them.
template <class F>
void each_zero_pair(const Routing& r, F&& f) {
  if (r.zero.empty()) return;
  for (int64_t n = 0; n < r.tokens(); ++n)
    for (int64_t i = 0; i < r.slots(); ++i)
      if (r.kept.row<int32_t>(n)[i] != 0 && r.rows.row<int32_t>(n)[i] == 0)
        f(static_cast<size_t>(n * r.slots() + i), r.kept_weights.row<float>(n)[i]);
}
// The same of the plan's rows, and then of these.
template <class F>
void each_kept_pair(const RoutingPlan& plan, const Routing& r, F&& f) {
  for (int64_t row = 0; row < plan.rows(); ++row)
    f(static_cast<size_t>(plan.pair[static_cast<size_t>(row)]), plan.weight.as<float>()[row]);
  each_zero_pair(r, f);
}

// Whether the stages have the loss that each_loss (moe/routing.h) calls so.
bool has_loss(const RoutingSpec&, std::string_view name);

// Whether a token's experts are a set, each taken for what it is and none ever left out.
bool takes_a_set(const RoutingSpec&);

// Throws (usage) on what has no meaning, with the reason and a valid alternative (docs/recipes.md
// lists the rules).
void validate(const RoutingSpec&);

struct Router {
  LogitParams logit;  // absent for hash routing
  Param noise;        // [E,D], present for LearnedNoise
  Param scale;        // [E], present where experts have a factor
  Param bias;         // [E] buffer, present with a SelectionBias
  Param threshold;    // [E] buffer, present where experts choose
  // [V,K] buffer, where a token's experts are those of its id, whatever their scores, by which they
  // are weighed all the same (DeepSeek-V4, arXiv 2606.19348, section 2.1)
  Param table;
  int64_t layer = 0;  // of the model
  // among the model's routers, in order: its part of Pass::step_counts and Pass::recorded
  int64_t index = 0;

  using Saved = Routing;  // moe/routing.h

  // x [N,D] A; the plan lives in run.saved. `key` empty: nothing is drawn.
  RoutingPlan forward(Run&, Tensor x, const Pass&, RngKey key, Saved&);
  // What forward() does but for the plan, which nobody needs where a token's experts are neurons of
  // one network (moe/neurons.h).
  void choose(Run&, Tensor x, const Pass&, RngKey key, Saved&);
  // The same as forward() from saved.logits (and key, clean, sigma) on: everything that needs no
  // matrix.
  RoutingPlan decide(Run&, const Pass&, Saved&) const;
  // dx [N,D] f32 is added to; dweight [R] f32, dzero [N] f32 that of saved.zero, absent without;
  // coef: the factors of the losses in the total loss
  void backward_acc(Run&, Tensor dx, Tensor dweight, Tensor dzero, const RoutingPlan&, const Pass&,
                    const RoutingLosses& coef, const Saved&);
  // The gradient of the logits that `decide` started from: dz of the noisy ones; dclean and dsigma
  // what goes to the clean ones and to the noise's scale directly, present where saved.clean and
  // saved.sigma are; `scale` gets its gradient here.  dz, dclean, dsigma [N,E] f32, written;
  // dweight [R] or absent, dzero [N] or absent (only losses)
  void decide_backward(Run&, Tensor dz, Tensor dclean, Tensor dsigma, Tensor dweight, Tensor dzero,
                       const RoutingPlan&, const Pass&, const RoutingLosses& coef, const Saved&);
  // After an optimizer step: moves the selection bias, but for that of zero experts, against
  // `counts` [E] and the thresholds towards `cutoff` [E] (the mean over the step's micro-batches;
  // empty where experts do not choose).
  void end_step(const Run&, const RoutingSpec&, std::span<const int64_t> counts,
                std::span<const double> cutoff);

 private:
  void decide_choice(Run&, const Pass&, Saved&) const;
  void make_logits(Run&, Tensor x, const RoutingSpec&, Saved&);
  void look_up(Run&, const Pass&, Saved&) const;
  void replay(Run&, const Pass&, Saved&) const;
};

}  // namespace moe
