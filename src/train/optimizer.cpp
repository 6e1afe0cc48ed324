// AdamW over parameters in their fixed order. Decay groups and clipping are decided here,
// arithmetic is done in ops/.
#include "train/optimizer.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "ops/ops.h"

namespace moe {
namespace {

// A dense zeroed tensor with the shape of `like`.
Tensor zeros_like(Arena& arena, const Tensor& like) {
  Tensor t = like;
  t.data = arena.alloc_bytes(static_cast<size_t>(like.bytes()));
  std::memset(t.data, 0, static_cast<size_t>(like.bytes()));
  return t;
}

}  // namespace

Optimizer::Optimizer(std::vector<Param*> params, const TrainOptions& options,
                     std::vector<double> rates)
    : params_(std::move(params)), options_(options), rates_(std::move(rates)) {
  rates_.resize(params_.size(), 1);
  for (const Param* param : params_) {
    m_.push_back(zeros_like(memory_, param->value));
    v_.push_back(zeros_like(memory_, param->value));
  }
}

double Optimizer::grad_norm(Run& run) const {
  double sum = 0;
  for (Param* param : params_) {
    ops::settle_grad(run, *param);
    const double squares = ops::sum_squares(run, param->grad);
    if (!std::isfinite(squares)) fail("the gradient of {} is not finite", param->name);
    sum += squares;
  }
  return std::sqrt(sum);
}

// Clipping as PyTorch's clip_grad_norm_: the gradient times min(1, clip / (norm + 1e-6)).
void Optimizer::update(Run& run, int64_t step, double lr, double grad_norm) {
  const double scale = options_.clip > 0 ? std::min(1.0, options_.clip / (grad_norm + 1e-6)) : 1.0;
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    const double decay = options_.decay_all || param.is_matrix() ? options_.weight_decay : 0;
    const ops::AdamW adamw{static_cast<float>(lr * rates_[i]), static_cast<float>(options_.beta1),
                           static_cast<float>(options_.beta2), static_cast<float>(options_.eps),
                           static_cast<float>(decay),          step,
                           static_cast<float>(scale)};
    ops::adamw_step(run, param, m_[i], v_[i], adamw);
  }
}

}  // namespace moe
