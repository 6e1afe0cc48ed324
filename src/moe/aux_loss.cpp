// All auxiliary losses together, the counts beside them, and the z-loss. The losses themselves: balance_loss.cpp and load_loss.cpp.
#include "moe/aux_loss.h"

#include <algorithm>

#include "moe/loss_parts.h"
#include "moe/stage_math.h"
#include "ops/ops.h"

namespace moe {

// Whole numbers: how the tokens are shared out changes nothing.
void count_pairs(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns) {
  constexpr int64_t kLine = 16;  // counts in a cache line, which no two threads write
  const int64_t experts = counts.numel(), stride = (experts + kLine - 1) / kLine * kLine;
  ArenaScope scope(run.scratch);
  Tensor of_thread = run.scratch.alloc_zeroed(DType::i32, {run.threads, stride});
  parallel_for(run.threads, choice.rows(), kGrain, [&](int64_t begin, int64_t end, int thread) {
    int32_t* mine = of_thread.row<int32_t>(thread);
    for (int64_t n = begin; n < end; ++n) {
      const int32_t *expert = choice.row<int32_t>(n), *taken = selected.empty() ? nullptr : selected.row<int32_t>(n);
      for (int64_t i = 0; i < columns; ++i) mine[expert[i]] += taken == nullptr || taken[i] != 0;
    }
  });
  int32_t* out = counts.as<int32_t>();
  std::fill_n(out, experts, 0);
  for (int64_t t = 0; t < run.threads; ++t)
    for (int64_t e = 0; e < experts; ++e) out[e] += of_thread.row<int32_t>(t)[e];
}

RoutingLosses aux_losses_forward(Run& run, const Routing& in, const Pass& pass, const AuxLosses& losses) {
  RoutingLosses out;
  if (losses.balance) out.balance = balance_forward(run, in, pass, *losses.balance);
  if (losses.device) out.device = device_forward(run, in, pass, *losses.device);
  if (losses.communication) out.communication = communication_forward(run, in, pass, *losses.communication);
  if (losses.importance) out.importance = importance_forward(in);
  if (losses.load) out.load = load_forward(run, in);
  return out;
}

void aux_losses_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor dlogits, Tensor dclean, Tensor dsigma, const Routing& in, const Pass& pass,
                             const AuxLosses& losses, const RoutingLosses& coef) {
  if (losses.balance && coef.balance != 0) balance_backward_acc(run, ds, dw, in, pass, *losses.balance, coef.balance);
  if (losses.device && coef.device != 0) device_backward_acc(run, ds, in, pass, *losses.device, coef.device);
  if (losses.communication && coef.communication != 0) communication_backward_acc(run, ds, in, pass, *losses.communication, coef.communication);
  if (losses.importance && coef.importance != 0) importance_backward_acc(run, dw, in, coef.importance);
  if (losses.load && coef.load != 0) load_backward_acc(run, dlogits, dclean, dsigma, in, coef.load);
}

float z_loss_forward(Tensor lse) {
  double loss = 0;
  for (int64_t n = 0; n < lse.numel(); ++n) loss += static_cast<double>(lse.as<float>()[n]) * static_cast<double>(lse.as<float>()[n]);
  return static_cast<float>(loss / static_cast<double>(lse.numel()));
}

void z_loss_backward(Tensor dlse, Tensor lse, float coef) {
  const float factor = 2 * coef / static_cast<float>(lse.numel());
  for (int64_t n = 0; n < lse.numel(); ++n) dlse.as<float>()[n] = factor * lse.as<float>()[n];
}

void z_loss_backward_acc(Run& run, Tensor dz, Tensor lse, Tensor z, float coef) {
  if (coef == 0) return;
  ArenaScope scope(run.scratch);
  Tensor dlse = run.scratch.alloc(DType::f32, {z.rows()});
  z_loss_backward(dlse, lse, coef);
  ops::logsumexp_backward_acc(run, dz, dlse, z, lse);
}

}  // namespace moe
