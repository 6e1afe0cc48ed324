#include "model/attention.h"

#include <array>
#include <cmath>

namespace moe {

// Per head the norm runs over rows of C numbers, in full over rows of H*C: the same memory seen with other rows.
Tensor Attention::as_norm_rows(const Norm& norm, Tensor x) const {
  const int64_t cols = norm.weight.value.numel();
  return x.reshape({x.numel() / cols, cols});
}

Tensor Attention::finish(Run& run, Tensor y, const Param& bias, std::optional<Norm>& norm, Norm::Saved& saved) {
  const std::array<int64_t, 2> all = {0, y.rows()};
  if (bias.present()) ops::bias_forward_acc(run, y, bias, {}, all);
  if (norm) {
    Tensor normed = run.saved.alloc(y.dtype, {y.rows(), y.cols()});
    norm->forward(run, as_norm_rows(*norm, normed), as_norm_rows(*norm, y), saved);
    y = normed;
  }
  return y;
}

void Attention::project_backward(Run& run, Tensor dx, bool accumulate, Tensor dy, Tensor x, Param& weight, Param& bias, std::optional<Norm>& norm,
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

void Attention::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer, Saved& saved) {
  const Batch& batch = pass.batch;
  const std::array<int64_t, 2> all = {0, x.rows()};
  std::optional<Norm> none;
  const auto projected = [&](const Param& w) { return run.saved.alloc(x.dtype, {x.rows(), w.value.rows()}); };
  Tensor yq = projected(q), yk = projected(k), yv = projected(v);  // [N,H*C], [N,G*C], [N,G*C] A
  ops::matmul_forward(run, {{q, yq}, {k, yk}, {v, yv}}, x, all);
  saved.q = finish(run, yq, q_bias, q_norm, saved.q_norm);
  saved.k = finish(run, yk, k_bias, k_norm, saved.k_norm);
  if (!pass.turns.empty()) ops::rope_acc(run, {saved.q, saved.k}, pass.turns, false);
  Norm::Saved unused;
  saved.v = finish(run, yv, v_bias, none, unused);
  ops::KvView kv{saved.k, saved.v, batch.bounds, batch.bounds.first(batch.bounds.size() - 1)};
  if (pass.cache) {
    pass.cache->store(run, layer, batch, saved.k, saved.v);
    kv = pass.cache->view(layer, batch);
  }
  saved.o = run.saved.alloc(x.dtype, {x.rows(), heads * head_width});
  saved.lse = run.saved.alloc(DType::f32, {x.rows(), heads});
  ops::attention_forward(run, saved.o, saved.lse, saved.q, kv, batch.positions, heads, kv_heads, 1 / std::sqrt(static_cast<float>(head_width)), window);
  ops::matmul_forward(run, y, saved.o, o, all);
  if (o_bias.present()) ops::bias_forward_acc(run, y, o_bias, {}, all);
}

void Attention::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass, const Saved& saved) {
  const Batch& batch = pass.batch;
  ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&](const Tensor& t) { return run.scratch.alloc(t.dtype, {t.rows(), t.cols()}); };
  std::optional<Norm> none;
  ops::matmul_dw(run, o, dy, saved.o, all);
  if (o_bias.present()) ops::bias_backward(run, {}, o_bias, dy, {}, all);
  Tensor do_ = like(saved.o), dq = like(saved.q), dk = like(saved.k), dv = like(saved.v);
  ops::matmul_dx(run, do_, dy, o, all);
  const ops::KvView kv{saved.k, saved.v, batch.bounds, batch.bounds.first(batch.bounds.size() - 1)};
  ops::attention_backward(run, dq, dk, dv, do_, saved.q, kv, saved.o, saved.lse, batch.positions, heads, kv_heads,
                          1 / std::sqrt(static_cast<float>(head_width)), window);
  if (!pass.turns.empty()) ops::rope_acc(run, {dq, dk}, pass.turns, true);
  project_backward(run, dx, false, dq, x, q, q_bias, q_norm, saved.q_norm);
  project_backward(run, dx, true, dk, x, k, k_bias, k_norm, saved.k_norm);
  project_backward(run, dx, true, dv, x, v, v_bias, none, {});
}

}  // namespace moe
