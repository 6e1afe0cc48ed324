#include "model/latents.h"

#include <array>

namespace moe {

namespace {

// y [N,*] A, room for w x.
Tensor projected(Run& run, const Param& w, Tensor x) {
  return run.saved.alloc(x.dtype, {x.rows(), w.value.rows()});
}

Tensor normed(Run& run, Norm& norm, float factor, Tensor y, Norm::Saved& saved) {
  Tensor z = run.saved.alloc(y.dtype, {y.rows(), y.cols()});
  norm.forward(run, z, y, saved);
  if (factor != 1) ops::scale(run, z, z, factor);
  return z;
}

}  // namespace

void Latents::forward(Run& run, Tensor x, Saved& saved) {
  if (!q_norm) return forward_keys(run, x, saved);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const Tensor yq = projected(run, q_a, x), ykv = projected(run, kv_a, x);
  if (k_rope.present()) {
    saved.k_rope = projected(run, k_rope, x);
    ops::matmul_forward(run, {{q_a, yq}, {kv_a, ykv}, {k_rope, saved.k_rope}}, x, all);
  } else {
    saved.k_rope = {};
    ops::matmul_forward(run, {{q_a, yq}, {kv_a, ykv}}, x, all);
  }
  saved.q = normed(run, *q_norm, q_factor, yq, saved.q_norm);
  if (both) {
    const int64_t width = yq.cols();
    saved.both = run.saved.alloc(x.dtype, {x.rows(), 2 * width});
    ops::cast(run, saved.both.slice_cols(0, width), saved.q);
    ops::cast(run, saved.both.slice_cols(width, 2 * width), yq);
  }
  saved.kv = normed(run, kv_norm, kv_factor, ykv, saved.kv_norm);
}

void Latents::forward_keys(Run& run, Tensor x, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  const Tensor ykv = projected(run, kv_a, x);
  saved.k_rope = projected(run, k_rope, x);
  ops::matmul_forward(run, {{kv_a, ykv}, {k_rope, saved.k_rope}}, x, all);
  saved.kv = normed(run, kv_norm, kv_factor, ykv, saved.kv_norm);
}

void Latents::backward_acc(Run& run, Tensor dx, Tensor dq, Tensor dkv, Tensor dk_rope, Tensor x,
                           const Saved& saved) {
  ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  // `beside`: what comes back past the norm.
  const auto back = [&](Param& weight, Norm& norm, float factor, Tensor dy,
                        const Norm::Saved& of_norm, Tensor beside = {}) {
    const ArenaScope within(run.scratch);
    if (factor != 1) {
      const Tensor dscaled = like(dy);
      ops::scale(run, dscaled, dy, factor);
      dy = dscaled;
    }
    Tensor dprojected = like(dy);
    norm.backward(run, dprojected, dy, of_norm);
    if (!beside.empty()) ops::add(run, dprojected, dprojected, beside);
    ops::matmul_dw(run, weight, dprojected, x, all);
    ops::matmul_dx_acc(run, dx, dprojected, weight, all);
  };
  if (both) {
    const int64_t width = saved.q.cols();
    const Tensor dnormed = like(saved.q);
    ops::cast(run, dnormed, dq.slice_cols(0, width));
    back(q_a, *q_norm, q_factor, dnormed, saved.q_norm, dq.slice_cols(width, 2 * width));
  } else if (q_norm) {
    back(q_a, *q_norm, q_factor, dq, saved.q_norm);
  }
  back(kv_a, kv_norm, kv_factor, dkv, saved.kv_norm);
  if (!k_rope.present()) return;
  ops::matmul_dw(run, k_rope, dk_rope, x, all);
  ops::matmul_dx_acc(run, dx, dk_rope, k_rope, all);
}

}  // namespace moe
