// All auxiliary losses together, and the z-loss. The losses themselves: balance_loss.cpp and
// load_loss.cpp.
#include "moe/losses/aux_loss.h"

#include <algorithm>

#include "moe/losses/loss_parts.h"
#include "moe/stages/stage_math.h"
#include "ops/ops.h"

namespace moe {

RoutingLosses aux_losses_forward(Run& run, const Routing& in, const Pass& pass,
                                 const AuxLosses& losses) {
  RoutingLosses out;
  if (losses.balance) out.balance = balance_forward(run, in, pass, *losses.balance);
  if (losses.device) out.device = device_forward(run, in, pass, *losses.device);
  if (losses.communication)
    out.communication = communication_forward(run, in, pass, *losses.communication);
  if (losses.importance) out.importance = importance_forward(in);
  if (losses.load) out.load = load_forward(run, in);
  return out;
}

void aux_losses_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor dlogits, Tensor dclean,
                             Tensor dsigma, const Routing& in, const Pass& pass,
                             const AuxLosses& losses, const RoutingLosses& coef) {
  if (losses.balance && coef.balance != 0)
    balance_backward_acc(run, ds, dw, in, pass, *losses.balance, coef.balance);
  if (losses.device && coef.device != 0)
    device_backward_acc(run, ds, in, pass, *losses.device, coef.device);
  if (losses.communication && coef.communication != 0)
    communication_backward_acc(run, ds, in, pass, *losses.communication, coef.communication);
  if (losses.importance && coef.importance != 0)
    importance_backward_acc(run, dw, in, coef.importance);
  if (losses.load && coef.load != 0) load_backward_acc(run, dlogits, dclean, dsigma, in, coef.load);
}

float z_loss_forward(Tensor lse) {
  double loss = 0;
  for (int64_t n = 0; n < lse.numel(); ++n)
    loss += static_cast<double>(lse.as<float>()[n]) * static_cast<double>(lse.as<float>()[n]);
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
