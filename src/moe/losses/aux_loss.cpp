// All auxiliary losses together, and the z-loss. The losses themselves: balance_loss.cpp and
// load_loss.cpp.
#include "moe/losses/aux_loss.h"

#include <algorithm>

#include "moe/losses/loss_parts.h"
#include "moe/stages/stage_math.h"
#include "ops/ops.h"

namespace moe {

void aux_losses_forward(Run& run, Tensor values, const Routing& in, const Pass& pass,
                        const AuxLosses& losses) {
  if (losses.balance)
    balance_forward(run, loss_at(values, &RoutingLosses::balance), in, pass, *losses.balance);
  if (losses.device)
    device_forward(run, loss_at(values, &RoutingLosses::device), in, pass, *losses.device);
  if (losses.communication)
    communication_forward(run, loss_at(values, &RoutingLosses::communication), in, pass,
                          *losses.communication);
  if (losses.importance) importance_forward(run, loss_at(values, &RoutingLosses::importance), in);
  if (losses.load) load_forward(run, loss_at(values, &RoutingLosses::load), in);
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

void z_loss_forward(Run& run, Tensor value, Tensor lse) { ops::mean_square(run, value, lse); }

void z_loss_backward(Run& run, Tensor dlse, Tensor lse, float coef) {
  ops::scale(run, dlse, lse, 2 * coef / static_cast<float>(lse.numel()));
}

void z_loss_backward_acc(Run& run, Tensor dz, Tensor lse, Tensor z, float coef) {
  if (coef == 0) return;
  ArenaScope scope(run.scratch);
  Tensor dlse = run.scratch.alloc(DType::f32, {z.rows()});
  z_loss_backward(run, dlse, lse, coef);
  ops::logsumexp_backward_acc(run, dz, dlse, z, lse);
}

}  // namespace moe
