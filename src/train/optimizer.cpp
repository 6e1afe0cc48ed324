// AdamW and Muon over parameters in their fixed order. Decay groups and clipping are decided here,
// arithmetic is done in ops/ and, of Muon, in train/muon.h.
#include "train/optimizer.h"

#include <cmath>
#include <cstring>
#include <span>

#include "core/error.h"
#include "ops/ops.h"
#include "train/muon.h"

namespace moe {
namespace {

// A dense zeroed tensor with the shape of `like`.
Tensor zeros_like(Arena& arena, const Tensor& like) {
  Tensor t = like;
  t.data = arena.alloc_zeroed_bytes(static_cast<size_t>(like.bytes()));
  return t;
}

// Matrices [first, last) of a bank, or the whole of a matrix.
Tensor matrices(const Tensor& bank, int64_t first, int64_t last) {
  const int64_t rows = bank.shape[bank.rank - 2], cols = bank.cols();
  return Tensor(bank.as<float>() + first * rows * cols, DType::f32, {last - first, rows, cols});
}

// Numbers [begin, end) of a dense tensor, a view in one dimension.
Tensor numbers(const Tensor& t, Span span) {
  return Tensor(t.as<float>() + span.begin, DType::f32, {span.end - span.begin});
}

std::span<float> all_of(const Tensor& t) { return {t.as<float>(), static_cast<size_t>(t.numel())}; }

}  // namespace

Optimizer::Optimizer(std::vector<Param*> params, const TrainOptions& options,
                     std::vector<double> rates, const comm::Layout& layout, Device* device)
    : params_(std::move(params)),
      layout_(layout),
      options_(options),
      rates_(std::move(rates)),
      memory_(size_t{4} << 20, device) {
  rates_.resize(params_.size(), 1);
  bool any_muon = false;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor moved = of_this_process(i, params_[i]->value);
    m_.push_back(zeros_like(memory_, moved));
    v_.push_back(keeps_squares(i) ? zeros_like(memory_, moved) : Tensor());
    any_muon = any_muon || !keeps_squares(i);
  }
  if (options_.optimizer == OptimizerKind::muon && !any_muon)
    fail_usage(
        "@optimizer muon moves whole matrices of attention and FFNs, of which @tune {} trains "
        "none; leave @optimizer out",
        name_of(options_.tune));
}

bool Optimizer::keeps_squares(size_t i) const { return !takes_muon(*params_[i], options_); }

Tensor Optimizer::of_this_process(size_t i, const Tensor& t) const {
  return layout_.all().size == 1 ? t : numbers(t, moved_here(i));
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
  std::vector<double> squares(params_.size(), 0), sums;
  std::vector<Tensor> moved;
  std::vector<size_t> of;  // whose gradient each is
  for (size_t i = 0; i < params_.size(); ++i) {
    ops::settle_grad(run, *params_[i]);
    const Tensor grad = of_this_process(i, params_[i]->grad);
    if (grad.numel() == 0) continue;
    moved.push_back(grad);
    of.push_back(i);
  }
  sums.resize(moved.size());
  ops::sums_of_squares(run, sums, std::span<const Tensor>(moved));
  for (size_t i = 0; i < of.size(); ++i) squares[of[i]] = sums[i];
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
  std::vector<Moved> by_muon;
  for (size_t i = 0; i < params_.size(); ++i) {
    const double decay = options_.decay_all || params_[i]->is_matrix() ? options_.weight_decay : 0;
    const ops::AdamW how{static_cast<float>(lr * rates_[i]), static_cast<float>(options_.beta1),
                         static_cast<float>(options_.beta2), static_cast<float>(options_.eps),
                         static_cast<float>(decay),          step,
                         static_cast<float>(scale)};
    if (keeps_squares(i)) update_adamw(run, i, how);
    else by_muon.push_back({i, how});
  }
  update_muon(run, by_muon);
}

void Optimizer::update_adamw(Run& run, size_t i, const ops::AdamW& how) {
  Param& param = *params_[i];
  if (layout_.all().size == 1) return ops::adamw_step(run, param, m_[i], v_[i], how);
  const Span moved = moved_here(i);
  if (moved.begin < moved.end)
    ops::adamw_step(run, numbers(param.value, moved), m_[i], v_[i], numbers(param.grad, moved),
                    how);
  gather(i, param.value);
  param.touched();
  param.grad_is_zero = true;
}

// All matrices of a model are orthogonalised together, so that threads share out small ones.
void Optimizer::update_muon(Run& run, std::span<const Moved> all) {
  std::vector<Tensor> directions;
  for (const Moved& moved : all)
    if (const Tensor some = direction(run, moved); !some.empty()) directions.push_back(some);
  orthogonalise(run, std::span<const Tensor>(directions));
  for (const auto& [i, how] : all) {
    Param& param = *params_[i];
    const Span moved = moved_here(i);
    if (moved.begin < moved.end) {
      const float rate =
          how.lr * muon_scale(param.value.shape[param.value.rank - 2], param.value.cols());
      const Tensor value = numbers(param.value, moved);
      ops::add_scaled(run, value, value, numbers(param.grad, moved), 1 - how.lr * how.weight_decay,
                      -rate);
    }
    gather(i, param.value);
    param.touched();
    param.grad_is_zero = true;
  }
}

// The gradient's memory becomes the momentum and then the direction. Every process has its share of
// the momentum, and orthogonalises the matrices that its share of the value lies in: these.
Tensor Optimizer::direction(Run& run, const Moved& of) {
  Param& param = *params_[of.param];
  ops::settle_grad(run, param);
  const auto mu = static_cast<float>(options_.momentum);
  const Span moved = moved_here(of.param);
  const Tensor grad = of_this_process(of.param, param.grad);
  if (moved.begin < moved.end) {
    const Tensor& m = m_[of.param];
    ops::add_scaled(run, m, m, grad, mu, of.how.grad_scale);
    ops::add_scaled(run, grad, grad, m, of.how.grad_scale, mu);
  }
  gather(of.param, param.grad);
  if (moved.begin >= moved.end) return {};
  const int64_t one = param.value.shape[param.value.rank - 2] * param.value.cols();
  return matrices(param.grad, moved.begin / one, (moved.end + one - 1) / one);
}

void Optimizer::gather(size_t i, const Tensor& t) {
  comm::during([&] { return fmt::format("the exchange of {}", params_[i]->name); },
               [&] { group_of(i).gather_shares(all_of(t)); });
}

}  // namespace moe
