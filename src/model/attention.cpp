#include "model/attention.h"

#include <array>
#include <cmath>

namespace moe {
namespace {

float scale_of(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<float>(shape.key_width));
}

// Of the batch itself.
ops::KvView kv_of(const Batch& batch, const Attention::Saved& saved) {
  return {saved.k, saved.v, batch.bounds, batch.bounds.first(batch.bounds.size() - 1)};
}

}  // namespace

// Per head the norm runs over rows of C numbers, in full over rows of H*C: the same memory seen
// with other rows.
Tensor Attention::as_norm_rows(const Norm& norm, Tensor x) const {
  const int64_t cols = norm.weight.value.numel();
  return x.reshape({x.numel() / cols, cols});
}

Tensor Attention::finish(Run& run, Tensor y, const Param& bias, std::optional<Norm>& norm,
                         Norm::Saved& saved) {
  const std::array<int64_t, 2> all = {0, y.rows()};
  if (bias.present()) ops::bias_forward_acc(run, y, bias, {}, all);
  if (norm) {
    Tensor normed = run.saved.alloc(y.dtype, {y.rows(), y.cols()});
    norm->forward(run, as_norm_rows(*norm, normed), as_norm_rows(*norm, y), saved);
    y = normed;
  }
  return y;
}

void Attention::project(Run& run, Tensor x, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto projected = [&](int64_t width) { return run.saved.alloc(x.dtype, {x.rows(), width}); };
  Tensor yq = projected(shape.q_width()), yk = projected(shape.k_width()),
         yv = projected(shape.v_width());
  ops::matmul_forward(run, {{q, yq}, {k, yk}, {v, yv}}, x, all);
  std::optional<Norm> none;
  Norm::Saved unused;
  saved.q = finish(run, yq, q_bias, q_norm, saved.q_norm);
  saved.k = finish(run, yk, k_bias, k_norm, saved.k_norm);
  saved.v = finish(run, yv, v_bias, none, unused);
}

void Attention::project_backward(Run& run, Tensor dx, Tensor dq, Tensor dk, Tensor dv, Tensor x,
                                 const Saved& saved) {
  std::optional<Norm> none;
  finish_backward(run, dx, false, dq, x, q, q_bias, q_norm, saved.q_norm);
  finish_backward(run, dx, true, dk, x, k, k_bias, k_norm, saved.k_norm);
  finish_backward(run, dx, true, dv, x, v, v_bias, none, {});
}

void Attention::finish_backward(Run& run, Tensor dx, bool accumulate, Tensor dy, Tensor x,
                                Param& weight, Param& bias, std::optional<Norm>& norm,
                                const Norm::Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  if (norm) {
    Tensor dprojected = run.scratch.alloc(dy.dtype, {dy.rows(), dy.cols()});
    norm->backward(run, as_norm_rows(*norm, dprojected), as_norm_rows(*norm, dy), saved);
    dy = dprojected;
  }
  ops::matmul_dw(run, weight, dy, x, all);
  if (bias.present()) ops::bias_backward(run, {}, bias, dy, {}, all);
  if (accumulate) ops::matmul_dx_acc(run, dx, dy, weight, all);
  else ops::matmul_dx(run, dx, dy, weight, all);
}

void Attention::rotate(Run& run, Tensor queries, Tensor keys, const Pass& pass,
                       bool inverse) const {
  if (shape.rotary_width > 0)
    ops::rope_acc(run, {queries, keys}, shape.key_width, pass.cos_sin, inverse);
}

void Attention::attend(Run& run, const Pass& pass, int64_t layer, Saved& saved) const {
  const Batch& batch = pass.batch;
  ops::KvView kv = kv_of(batch, saved);
  if (pass.cache) {
    pass.cache->store(run, layer, batch, saved.k, saved.v);
    kv = pass.cache->view(layer, batch);
  }
  saved.o = run.saved.alloc(saved.q.dtype, {saved.q.rows(), shape.o_width()});
  saved.lse = run.saved.alloc(DType::f32, {saved.q.rows(), shape.heads});
  ops::attention_forward(run, saved.o, saved.lse, saved.q, kv, batch.positions, shape.heads,
                         shape.kv_heads, scale_of(shape), shape.window);
}

void Attention::attend_backward(Run& run, Tensor dq, Tensor dk, Tensor dv, Tensor do_,
                                const Pass& pass, const Saved& saved) const {
  ops::attention_backward(run, dq, dk, dv, do_, saved.q, kv_of(pass.batch, saved), saved.o,
                          saved.lse, pass.batch.positions, shape.heads, shape.kv_heads,
                          scale_of(shape), shape.window);
}

void Attention::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer,
                        Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  project(run, x, saved);
  rotate(run, saved.q, saved.k, pass, false);
  attend(run, pass, layer, saved);
  ops::matmul_forward(run, y, saved.o, o, all);
  if (o_bias.present()) ops::bias_forward_acc(run, y, o_bias, {}, all);
}

void Attention::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                         const Saved& saved) {
  ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  ops::matmul_dw(run, o, dy, saved.o, all);
  if (o_bias.present()) ops::bias_backward(run, {}, o_bias, dy, {}, all);
  Tensor do_ = like(saved.o), dq = like(saved.q), dk = like(saved.k), dv = like(saved.v);
  ops::matmul_dx(run, do_, dy, o, all);
  attend_backward(run, dq, dk, dv, do_, pass, saved);
  rotate(run, dq, dk, pass, true);
  project_backward(run, dx, dq, dk, dv, x, saved);
}

}  // namespace moe
