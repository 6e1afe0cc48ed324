#include "model/hyper_connection.h"

#include <array>

namespace moe {

void HyperConnection::collapse(Run& run, Tensor x, Tensor h, Saved& saved) {
  const std::array<int64_t, 2> all = {0, h.rows()};
  const int64_t weights = base.value.numel();
  const auto of_tokens = [&] { return run.saved.alloc(DType::f32, {h.rows(), weights}); };
  saved = {h, of_tokens(), of_tokens(), {}};
  {
    const ArenaScope scope(run.scratch);
    const Tensor normed = run.scratch.alloc(DType::f32, {h.rows(), h.cols()}),
                 rstd = run.scratch.alloc(DType::f32, {h.rows()});
    ops::rms_norm_forward(run, normed, rstd, h, Param(), norm_eps);
    ops::matmul_forward_f32(run, saved.z, normed, weight, all);
  }
  ops::hyper_weights_forward(run, saved.w, saved.z, base, scale, shape);
  ops::collapse_streams_forward(run, x, h, saved.w);
}

void HyperConnection::spread(Run& run, Tensor out, Tensor y, Saved& saved) const {
  saved.y = y;
  ops::spread_streams_forward(run, out, saved.h, y, saved.w, shape.mixes);
}

void HyperConnection::spread_backward(Run& run, Tensor dh, Tensor dy, Tensor dw,
                                      const Saved& saved) const {
  const ArenaScope scope(run.scratch);
  Tensor dout = dh;
  if (shape.mixes) dout = run.scratch.copy(dh);
  ops::spread_streams_backward(run, dh, dy, dw, dout, saved.h, saved.y, saved.w, shape.mixes);
}

// What the norm left is made again: it is as large as the streams.
void HyperConnection::collapse_backward_acc(Run& run, Tensor dh, Tensor dw, Tensor dx,
                                            const Saved& saved) {
  const std::array<int64_t, 2> all = {0, dh.rows()};
  const ArenaScope scope(run.scratch);
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(DType::f32, {t.rows(), t.cols()});
  };
  ops::collapse_streams_backward_acc(run, dh, dw, dx, saved.h, saved.w);
  const Tensor dz = like(saved.z), normed = like(dh), dnormed = like(dh),
               rstd = run.scratch.alloc(DType::f32, {dh.rows()});
  ops::hyper_weights_backward(run, dz, base, scale, dw, saved.z, shape);
  Param none;
  ops::rms_norm_forward(run, normed, rstd, saved.h, none, norm_eps);
  ops::matmul_dw(run, weight, dz, normed, all);
  ops::matmul_dx(run, dnormed, dz, weight, all);
  ops::rms_norm_backward(run, normed, none, dnormed, saved.h, rstd);
  ops::add(run, dh, dh, normed);
}

}  // namespace moe
