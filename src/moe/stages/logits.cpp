#include "moe/stages/logits.h"

#include <array>
#include <cmath>

#include "tensor/on_host.h"

namespace moe {

bool is_fixed(const LogitStage& stage) {
  const auto* analytic = std::get_if<AnalyticLogits>(&stage);
  return analytic != nullptr && analytic->fixed;
}

void LogitParams::forward(Run& run, Tensor z, Tensor x, const LogitStage& stage, Saved& saved) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  saved = {};
  if (const auto* linear = std::get_if<LinearLogits>(&stage)) {
    ops::matmul_forward_f32(run, z, x, weight, all);
    if (linear->bias) ops::bias_forward_acc(run, z, bias, {}, all);
    return;
  }
  const auto like = [&] { return run.saved.alloc(DType::f32, {z.rows(), z.cols()}); };
  saved.up = like();
  if (!up.present()) {
    ops::matmul_forward_f32(run, saved.up, x, weight, all);
  } else if (saved.gate = like(); is_quantised(weight.value.dtype)) {
    // side by side: tokens become bytes once
    ops::matmul_forward(run, {{weight, saved.gate}, {up, saved.up}}, x, all);
  } else {
    ops::matmul_forward_f32(run, saved.gate, x, weight, all);
    ops::matmul_forward_f32(run, saved.up, x, up, all);
  }
  ops::ffn_act_forward(run, z, saved.gate, saved.up, {}, act);
  OnHost host(run);
  const Tensor y = host.write(z);
  for (int64_t i = 0; i < y.numel(); ++i) y.as<float>()[i] = std::abs(y.as<float>()[i]);
}

// With a = act(g) u: d|a| = sign(a) da.
void LogitParams::backward_acc(Run& run, Tensor dx, Tensor dz, Tensor x, const LogitStage& stage,
                               const Saved& saved) {
  if (is_fixed(stage)) return;
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto through = [&](Param& w, Tensor dy) {
    ops::matmul_dw(run, w, dy, x, all);
    ops::matmul_dx_acc(run, dx, dy, w, all);
  };
  if (const auto* linear = std::get_if<LinearLogits>(&stage)) {
    if (linear->bias) ops::bias_backward(run, {}, bias, dz, {}, all);
    through(weight, dz);
    return;
  }
  ArenaScope scope(run.scratch);
  const auto like = [&] { return run.scratch.alloc(DType::f32, {dz.rows(), dz.cols()}); };
  Tensor hidden = like(), dgate = saved.gate.empty() ? Tensor{} : like(), dup = like();
  ops::ffn_act_forward(run, hidden, saved.gate, saved.up, {}, act);
  {
    OnHost host(run);
    const Tensor y = host.write(hidden), dy = host.read(dz);
    for (int64_t i = 0; i < dy.numel(); ++i)
      y.as<float>()[i] = std::copysign(1.0f, y.as<float>()[i]) * dy.as<float>()[i];
  }
  ops::ffn_act_backward(run, dgate, dup, like(), {}, hidden, saved.gate, saved.up, {}, act);
  if (!dgate.empty()) through(weight, dgate);
  through(dgate.empty() ? weight : up, dup);
}

}  // namespace moe
