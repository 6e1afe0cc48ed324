// All auxiliary losses together, the counts beside them, and the z-loss. The losses themselves: balance_loss.cpp and load_loss.cpp.
#include "moe/aux_loss.h"

#include <algorithm>
#include <cmath>

#include "moe/loss_parts.h"
#include "moe/stage_math.h"

namespace moe {

void count_pairs(Tensor counts, Tensor choice, Tensor selected) {
  int32_t* out = counts.as<int32_t>();
  std::fill_n(out, counts.numel(), 0);
  for (int64_t n = 0; n < choice.rows(); ++n)
    for (int64_t i = 0; i < choice.cols(); ++i) out[choice.row<int32_t>(n)[i]] += selected.row<int32_t>(n)[i] != 0;
}

RoutingLosses aux_losses_forward(Run& run, const LossInput& in, const AuxLosses& losses) {
  RoutingLosses out;
  if (losses.balance) out.balance = balance_forward(run, in, *losses.balance);
  if (losses.device) out.device = device_forward(run, in, *losses.device);
  if (losses.communication) out.communication = communication_forward(run, in, *losses.communication);
  if (losses.importance) out.importance = importance_forward(in);
  if (losses.load) out.load = load_forward(run, in);
  return out;
}

void aux_losses_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor dlogits, Tensor dclean, Tensor dsigma, const LossInput& in, const AuxLosses& losses,
                             const RoutingLosses& coef) {
  if (losses.balance && coef.balance != 0) balance_backward_acc(run, ds, dw, in, *losses.balance, coef.balance);
  if (losses.device && coef.device != 0) device_backward_acc(run, ds, in, *losses.device, coef.device);
  if (losses.communication && coef.communication != 0) communication_backward_acc(run, ds, in, *losses.communication, coef.communication);
  if (losses.importance && coef.importance != 0) importance_backward_acc(run, dw, in, coef.importance);
  if (losses.load && coef.load != 0) load_backward_acc(run, dlogits, dclean, dsigma, in, coef.load);
}

float z_loss_forward(Run& run, Tensor lse, Tensor z) {
  const int64_t experts = z.cols(), tokens = z.rows();
  float* out = lse.as<float>();
  each_token(run, tokens, [&](int64_t n) {
    const float* x = z.row<float>(n);
    const float top = *std::max_element(x, x + experts);
    float sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(x[e] - top);
    out[n] = top + std::log(sum);
  });
  double loss = 0;
  for (int64_t n = 0; n < tokens; ++n) loss += static_cast<double>(out[n]) * static_cast<double>(out[n]);
  return static_cast<float>(loss / static_cast<double>(tokens));
}

void z_loss_backward_acc(Run& run, Tensor dz, Tensor lse, Tensor z, float coef) {
  if (coef == 0) return;
  const float factor = 2 * coef / static_cast<float>(z.rows());
  each_token(run, z.rows(), [&](int64_t n) {
    const float l = lse.as<float>()[n];
    for (int64_t e = 0; e < z.cols(); ++e) dz.row<float>(n)[e] += factor * l * std::exp(z.row<float>(n)[e] - l);
  });
}

}  // namespace moe
