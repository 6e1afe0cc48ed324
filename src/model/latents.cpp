#include "model/latents.h"

#include <array>

namespace moe {

void Latents::forward(Run& run, Tensor x, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto projected = [&](const Param& w) {
    return run.saved.alloc(x.dtype, {x.rows(), w.value.rows()});
  };
  const auto normed = [&](Norm& norm, float factor, Tensor y, Norm::Saved& of_norm) {
    Tensor z = run.saved.alloc(y.dtype, {y.rows(), y.cols()});
    norm.forward(run, z, y, of_norm);
    if (factor != 1) ops::scale(run, z, z, factor);
    return z;
  };
  Tensor yq, ykv = projected(kv_a);
  saved.k_rope = k_rope.present() ? projected(k_rope) : Tensor{};
  if (q_norm) {
    yq = projected(q_a);
    if (k_rope.present())
      ops::matmul_forward(run, {{q_a, yq}, {kv_a, ykv}, {k_rope, saved.k_rope}}, x, all);
    else ops::matmul_forward(run, {{q_a, yq}, {kv_a, ykv}}, x, all);
    saved.q = normed(*q_norm, q_factor, yq, saved.q_norm);
    if (both) {
      const int64_t width = yq.cols();
      saved.both = run.saved.alloc(x.dtype, {x.rows(), 2 * width});
      ops::cast(run, saved.both.slice_cols(0, width), saved.q);
      ops::cast(run, saved.both.slice_cols(width, 2 * width), yq);
    }
  } else {
    ops::matmul_forward(run, {{kv_a, ykv}, {k_rope, saved.k_rope}}, x, all);
  }
  saved.kv = normed(kv_norm, kv_factor, ykv, saved.kv_norm);
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
