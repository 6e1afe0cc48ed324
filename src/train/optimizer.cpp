// AdamW over parameters in their fixed order. Decay groups and clipping are decided here,
// arithmetic is done in ops/.
#include "train/optimizer.h"

#include <cmath>
#include <cstring>
#include <span>

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

// Numbers [begin, end) of a dense tensor, a view in one dimension.
Tensor numbers(const Tensor& t, Span span) {
  return Tensor(t.as<float>() + span.begin, DType::f32, {span.end - span.begin});
}

std::span<float> all_of(const Tensor& t) { return {t.as<float>(), static_cast<size_t>(t.numel())}; }

}  // namespace

Optimizer::Optimizer(std::vector<Param*> params, const TrainOptions& options,
                     std::vector<double> rates, const comm::Layout& layout)
    : params_(std::move(params)), layout_(layout), options_(options), rates_(std::move(rates)) {
  rates_.resize(params_.size(), 1);
  const bool alone = layout_.all().size == 1;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor& value = params_[i]->value;
    const Tensor moved = alone ? value : numbers(value, moved_here(i));
    m_.push_back(zeros_like(memory_, moved));
    v_.push_back(zeros_like(memory_, moved));
  }
}

Span Optimizer::moved_by(int p, size_t i) const {
  const Param& param = *params_[i];
  return layout_.moved_by(p, param.whole().numel(), param.share.of);
}

Span Optimizer::moved_here(size_t i) const {
  const Param& param = *params_[i];
  const Span moved = moved_by(layout_.all().rank, i);
  const int64_t before =
      param.is_share() ? param.share.first * (param.value.numel() / param.value.shape[0]) : 0;
  return {moved.begin - before, moved.end - before};
}

const comm::Group& Optimizer::group_of(size_t i) const {
  // Of an expert that is here the backwards of all processes of its copy left their parts here.
  return params_[i]->is_share() ? layout_.copies() : layout_.all();
}

// Where one process met no rows of an expert another may have: a gradient that counts as zero is
// written first.
void Optimizer::sum_grads(Run& run) {
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    ops::settle_grad(run, param);
    comm::during([&] { return fmt::format("the sum of the gradient of {}", param.name); },
                 [&] { group_of(i).sum_shares(all_of(param.grad)); });
  }
}

double Optimizer::grad_norm(Run& run) const {
  std::vector<double> squares;
  for (size_t i = 0; i < params_.size(); ++i) {
    ops::settle_grad(run, *params_[i]);
    const Tensor moved =
        layout_.all().size == 1 ? params_[i]->grad : numbers(params_[i]->grad, moved_here(i));
    squares.push_back(moved.numel() == 0 ? 0 : ops::sum_squares(run, moved));
  }
  layout_.all().sum(squares);
  double sum = 0;
  comm::alike(layout_.all(), [&] {
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!std::isfinite(squares[i])) fail("the gradient of {} is not finite", params_[i]->name);
      sum += squares[i];
    }
  });
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
    if (layout_.all().size == 1) {
      ops::adamw_step(run, param, m_[i], v_[i], adamw);
      continue;
    }
    const Span moved = moved_here(i);
    if (moved.begin < moved.end)
      ops::adamw_step(run, numbers(param.value, moved), m_[i], v_[i], numbers(param.grad, moved),
                      adamw);
    comm::during([&] { return fmt::format("the exchange of {}", param.name); },
                 [&] { group_of(i).gather_shares(all_of(param.value)); });
    param.touched();
    param.grad_is_zero = true;
  }
}

}  // namespace moe
