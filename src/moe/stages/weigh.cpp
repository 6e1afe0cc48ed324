// Which of the weighings of ops/routing.h each weigh stage is.
#include "moe/stages/weigh.h"

#include "moe/stages/score.h"
#include "moe/stages/stage_math.h"
#include "ops/ops.h"
#include "ops/routing.h"

namespace moe {

using Renormalise = ChosenScores::Renormalise;

bool constant_when_alone(const WeighStage& stage) {
  return std::visit(Overloaded{
                        [](const ChosenScores& c) { return c.renormalise != Renormalise::never; },
                        [](ChosenSoftmax) { return true; },
                        [](TokenSoftmax) { return false; },
                        [](UnitWeight) { return true; },
                        [](OnePlusScaled) { return false; },
                        [](ScaledScores) { return true; },
                        [](NearSoftmax) { return false; },
                        [](ChosenSigmoids c) { return c.renormalise; },
                    },
                    stage);
}

bool has_expert_scale(const WeighStage& stage) {
  return std::holds_alternative<OnePlusScaled>(stage) ||
         std::holds_alternative<ScaledScores>(stage);
}

float first_expert_scale(const WeighStage& stage) {
  return std::holds_alternative<ScaledScores>(stage) ? 1 : 0;
}

bool renormalises_after_drop(const WeighStage& stage) {
  const auto* scores = std::get_if<ChosenScores>(&stage);
  return scores != nullptr && scores->renormalise == Renormalise::after_drop;
}

namespace {

// Of ChosenSigmoids, in scratch, which backward makes again.
Tensor sigmoids_of(Run& run, const Routing& r) {
  Tensor p = run.scratch.alloc(DType::f32, {r.scores.rows(), r.scores.cols()});
  score_forward(run, p, {}, r.scores, SigmoidScore{});
  return p;
}

void weigh_sigmoids_backward_acc(Run& run, Tensor ds, Tensor dw, const Routing& r,
                                 bool renormalise) {
  const ArenaScope scope(run.scratch);
  const Tensor p = sigmoids_of(run, r), dp = run.scratch.alloc(DType::f32, {p.rows(), p.cols()});
  ops::zero(run, dp);
  ops::weigh_scores_backward_acc(run, dp, dw, r.weights, p, r.choice, r.selected, renormalise, 1);
  score_backward(run, dp, dp, {}, p, r.scores, {}, SigmoidScore{});
  ops::add(run, ds, ds, dp);
}

}  // namespace

void weigh_forward(Run& run, Routing& r, const WeighStage& stage) {
  r.weights = run.saved.alloc(DType::f32, {r.tokens(), r.slots()});
  std::visit(
      Overloaded{
          [&](const ChosenScores& scores) {
            ops::weigh_scores_forward(run, r.weights, r.scores, r.choice, r.selected,
                                      scores.renormalise == Renormalise::before_drop, scores.scale);
          },
          [&](ChosenSoftmax) {
            ops::weigh_softmax_forward(run, r.weights, r.scores, r.choice, r.selected);
          },
          [&](TokenSoftmax) {
            ops::weigh_over_tokens_forward(run, r.weights, r.scores, r.choice, r.selected,
                                           r.scopes);
          },
          [&](UnitWeight) { ops::weigh_one_forward(run, r.weights, r.selected); },
          [&](OnePlusScaled) {
            ops::weigh_one_plus_forward(run, r.weights, r.scores, r.scale, r.choice, r.selected);
          },
          [&](ScaledScores) {
            ops::weigh_scores_forward(run, r.weights, r.scores, r.choice, r.selected, true, 1);
            ops::scale_by_expert_forward(run, r.weights, r.weights, r.scale, r.choice);
          },
          [&](const NearSoftmax& near) {
            const RngKey key = r.key.empty() ? RngKey{} : r.key.fold(4);
            ops::weigh_near_best_forward(run, r.weights, r.scores, r.choice, r.selected, near.eps,
                                         key);
          },
          [&](const ChosenSigmoids& sigmoids) {
            const ArenaScope scope(run.scratch);
            ops::weigh_scores_forward(run, r.weights, sigmoids_of(run, r), r.choice, r.selected,
                                      sigmoids.renormalise, 1);
          },
      },
      stage);
}

namespace {

// p of ScaledScores [N,K], made again in scratch: a scale of 0 leaves nothing of it in the weights.
Tensor shares_of(Run& run, const Routing& r) {
  Tensor p = run.scratch.alloc(DType::f32, {r.tokens(), r.slots()});
  ops::weigh_scores_forward(run, p, r.scores, r.choice, r.selected, true, 1);
  return p;
}

}  // namespace

void weigh_backward_acc(Run& run, Tensor ds, Tensor dw, const Routing& r, const WeighStage& stage) {
  std::visit(Overloaded{
                 [&](const ChosenScores& scores) {
                   ops::weigh_scores_backward_acc(
                       run, ds, dw, r.weights, r.scores, r.choice, r.selected,
                       scores.renormalise == Renormalise::before_drop, scores.scale);
                 },
                 [&](ChosenSoftmax) {
                   ops::weigh_softmax_backward_acc(run, ds, dw, r.weights, r.choice, r.selected);
                 },
                 [&](TokenSoftmax) {
                   ops::weigh_over_tokens_backward_acc(run, ds, dw, r.weights, r.choice, r.selected,
                                                       r.scopes);
                 },
                 [](UnitWeight) {},
                 [&](OnePlusScaled) {
                   ops::weigh_one_plus_backward_acc(run, ds, dw, r.scale, r.choice, r.selected);
                 },
                 [&](ScaledScores) {
                   const ArenaScope scope(run.scratch);
                   Tensor dshare = run.scratch.alloc(DType::f32, {dw.rows(), dw.cols()});
                   ops::scale_by_expert_forward(run, dshare, dw, r.scale, r.choice);
                   ops::weigh_scores_backward_acc(run, ds, dshare, shares_of(run, r), r.scores,
                                                  r.choice, r.selected, true, 1);
                 },
                 [&](const NearSoftmax& near) {
                   ops::weigh_near_best_backward_acc(run, ds, dw, r.scores, r.choice, r.selected,
                                                     near.eps);
                 },
                 [&](const ChosenSigmoids& sigmoids) {
                   weigh_sigmoids_backward_acc(run, ds, dw, r, sigmoids.renormalise);
                 },
             },
             stage);
}

void weigh_scale_backward(Run& run, Param& scale, Tensor dw, const Routing& r,
                          const WeighStage& stage) {
  if (std::holds_alternative<OnePlusScaled>(stage))
    ops::weigh_one_plus_scale_backward(run, scale, dw, r.scores, r.choice, r.selected);
  if (!std::holds_alternative<ScaledScores>(stage)) return;
  const ArenaScope scope(run.scratch);
  ops::scale_by_expert_backward(run, scale, dw, shares_of(run, r), r.choice, r.selected);
}

}  // namespace moe
