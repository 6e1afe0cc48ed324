// The score stages and their adjoints.
#include "moe/stages/score.h"

#include "moe/stages/stage_math.h"
#include "ops/ops.h"

namespace moe {

void score_forward(Run& run, Tensor s, Tensor lse, Tensor z, const ScoreStage& stage) {
  if (std::holds_alternative<SoftmaxScore>(stage)) {
    ops::softmax_forward(run, s, lse, z);
    return;
  }
  if (!lse.empty()) ops::softmax_forward(run, {}, lse, z);
  const int64_t experts = z.cols();
  const auto rows = [&](auto&& row) {
    each_token(run, z.rows(), [&](int64_t n) { row(s.row<float>(n), z.row<float>(n)); });
  };
  std::visit(Overloaded{
                 [](SoftmaxScore) {},
                 [&](SigmoidScore) {
                   rows([&](float* out, const float* in) {
                     std::transform(in, in + experts, out, sigmoid);
                   });
                 },
                 [&](RawScore) {
                   rows([&](float* out, const float* in) { std::copy_n(in, experts, out); });
                 },
             },
             stage);
}

void score_backward(Run& run, Tensor dz, Tensor ds, Tensor dlse, Tensor s, Tensor z, Tensor lse,
                    const ScoreStage& stage) {
  if (std::holds_alternative<SoftmaxScore>(stage)) {
    ops::softmax_backward(run, dz, ds, dlse, s);
    return;
  }
  const int64_t experts = s.cols();
  const auto rows = [&](auto&& row) {
    each_token(run, s.rows(),
               [&](int64_t n) { row(dz.row<float>(n), ds.row<float>(n), s.row<float>(n)); });
  };
  std::visit(Overloaded{
                 [](SoftmaxScore) {},
                 [&](SigmoidScore) {
                   rows([&](float* dx, const float* dy, const float* y) {
                     for (int64_t e = 0; e < experts; ++e) dx[e] = dy[e] * y[e] * (1 - y[e]);
                   });
                 },
                 [&](RawScore) {
                   rows([&](float* dx, const float* dy, const float*) {
                     if (dx != dy) std::copy_n(dy, experts, dx);
                   });
                 },
             },
             stage);
  if (!dlse.empty()) ops::logsumexp_backward_acc(run, dz, dlse, z, lse);
}

}  // namespace moe
