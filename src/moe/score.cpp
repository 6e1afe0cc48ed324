// The score stages and their adjoints.
#include "moe/score.h"

#include "moe/stage_math.h"

namespace moe {

void score_forward(Run& run, Tensor s, Tensor z, const ScoreStage& stage) {
  const int64_t experts = z.cols();
  const auto rows = [&](auto&& row) { each_token(run, z.rows(), [&](int64_t n) { row(s.row<float>(n), z.row<float>(n)); }); };
  std::visit(Overloaded{
                 [&](SoftmaxScore) { rows([&](float* out, const float* in) { softmax(out, in, experts); }); },
                 [&](SigmoidScore) { rows([&](float* out, const float* in) { std::transform(in, in + experts, out, sigmoid); }); },
                 [&](RawScore) { rows([&](float* out, const float* in) { std::copy_n(in, experts, out); }); },
             },
             stage);
}

void score_backward(Run& run, Tensor dz, Tensor ds, Tensor s, const ScoreStage& stage) {
  const int64_t experts = s.cols();
  const auto rows = [&](auto&& row) { each_token(run, s.rows(), [&](int64_t n) { row(dz.row<float>(n), ds.row<float>(n), s.row<float>(n)); }); };
  std::visit(Overloaded{
                 [&](SoftmaxScore) { rows([&](float* dx, const float* dy, const float* y) { softmax_backward(dx, dy, y, experts); }); },
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
}

}  // namespace moe
