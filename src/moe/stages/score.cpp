// The score stages and their adjoints.
#include "moe/stages/score.h"

#include "moe/stages/stage_math.h"
#include "ops/ops.h"
#include "ops/routing.h"

namespace moe {

void score_forward(Run& run, Tensor s, Tensor lse, Tensor z, const ScoreStage& stage) {
  if (std::holds_alternative<SoftmaxScore>(stage)) {
    ops::softmax_forward(run, s, lse, z);
    return;
  }
  if (!lse.empty()) ops::softmax_forward(run, {}, lse, z);
  std::visit(Overloaded{
                 [](SoftmaxScore) {},
                 [&](SigmoidScore) { ops::ffn_act_forward(run, s, {}, z, {}, ops::Act::sigmoid); },
                 [&](RawScore) { ops::cast(run, s, z); },
                 [&](SqrtSoftplusScore) { ops::sqrt_softplus_forward(run, s, z); },
             },
             stage);
}

void score_backward(Run& run, Tensor dz, Tensor ds, Tensor dlse, Tensor s, Tensor z, Tensor lse,
                    const ScoreStage& stage) {
  if (std::holds_alternative<SoftmaxScore>(stage)) {
    ops::softmax_backward(run, dz, ds, dlse, s);
    return;
  }
  std::visit(Overloaded{
                 [](SoftmaxScore) {},
                 [&](SigmoidScore) {
                   // dz = ds (s - s^2)
                   const ArenaScope scope(run.scratch);
                   const Tensor slope = run.scratch.alloc(DType::f32, {s.rows(), s.cols()});
                   ops::multiply(run, slope, s, s);
                   ops::add_scaled(run, slope, s, slope, 1, -1);
                   ops::multiply(run, dz, ds, slope);
                 },
                 [&](RawScore) {
                   if (dz.data != ds.data) ops::cast(run, dz, ds);
                 },
                 [&](SqrtSoftplusScore) { ops::sqrt_softplus_backward(run, dz, ds, s, z); },
             },
             stage);
  if (!dlse.empty()) ops::logsumexp_backward_acc(run, dz, dlse, z, lse);
}

}  // namespace moe
