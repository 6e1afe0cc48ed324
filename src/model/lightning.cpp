#include "model/lightning.h"

#include <array>
#include <cmath>

namespace moe {
namespace {

// What the state space takes of each head, and of each token, where all of it is fixed: with
// log(1 + e^(0 + bias)) the step is 1.
struct FixedSteps {
  std::vector<float> bias, skip;
  Tensor dt;  // [N,H] f32, zeros
  Param a_log, dt_bias, past;

  FixedSteps(Run& run, const std::vector<float>& log_slopes, int64_t tokens)
      : bias(log_slopes.size(), static_cast<float>(std::log(std::expm1(1.0)))),
        skip(log_slopes.size()) {
    const auto of_heads = [](Param& param, const std::vector<float>& numbers) {
      param.role = Role::buffer;
      param.value = Tensor(const_cast<float*>(numbers.data()), DType::f32, {std::ssize(numbers)});
    };
    of_heads(a_log, log_slopes);
    of_heads(dt_bias, bias);
    of_heads(past, skip);
    dt = run.scratch.alloc(DType::f32, {tokens, std::ssize(log_slopes)});
    ops::zero(run, dt);
  }
};

}  // namespace

double lightning_slope(int64_t head, int64_t heads, int64_t layer, int64_t layers) {
  constexpr double kSmall = 1e-5;
  const auto of = [](int64_t n) { return static_cast<double>(n); };
  return std::exp2(-8 * of(head + 1) / of(heads)) *
         (1 - of(layer) / (of(layers - 1) + kSmall) + kSmall);
}

void Lightning::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer,
                        Saved& saved) {
  const int64_t n = x.rows();
  const std::array<int64_t, 2> all = {0, n};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  for (Tensor* t : {&saved.projected, &saved.vkq}) *t = run.saved.alloc(x.dtype, {n, 3 * values()});
  for (Tensor* t : {&saved.z, &saved.a, &saved.normed})
    *t = run.saved.alloc(x.dtype, {n, values()});
  ops::matmul_forward(run,
                      {{v, part(saved.projected, 0)},
                       {k, part(saved.projected, 1)},
                       {q, part(saved.projected, 2)},
                       {z, saved.z}},
                      x, all);
  ops::ffn_act_forward(run, saved.vkq, {}, saved.projected, {}, act);
  std::vector<float*> states;
  if (pass.cache) states = pass.cache->states(layer, pass.batch);
  if (pass.goes_back())
    saved.chunks = run.saved.alloc(DType::f32, {ops::delta_chunks(bounds), values() * width});
  {
    const ArenaScope scope(run.scratch);
    const FixedSteps steps(run, log_slopes, n);
    ops::state_space_forward(run, saved.a, saved.chunks, saved.vkq, steps.dt, steps.a_log,
                             steps.dt_bias, steps.past, state_heads(), bounds, states);
  }
  norm.forward(run, saved.normed, saved.a, saved.norm);
  const ArenaScope scope(run.scratch);
  const Tensor gated = run.scratch.alloc(x.dtype, {n, values()});
  ops::ffn_act_forward(run, gated, saved.z, saved.normed, {}, ops::Act::sigmoid);
  ops::matmul_forward(run, y, gated, o, all);
}

void Lightning::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                         const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  const Tensor dgated = like(saved.normed), dz = like(saved.z), dnormed = like(saved.normed);
  ops::matmul_dx(run, dgated, dy, o, all);
  ops::ffn_act_backward(run, dz, dnormed, dgated, {}, dgated, saved.z, saved.normed, {},
                        ops::Act::sigmoid);
  ops::matmul_dw(run, o, dy, dgated, all);
  const Tensor da = dgated;  // its memory
  norm.backward(run, da, dnormed, saved.norm);

  const Tensor dvkq = like(saved.vkq), dprojected = like(saved.projected);
  FixedSteps steps(run, log_slopes, x.rows());
  const Tensor ddt = like(steps.dt);  // nobody asks for it
  ops::state_space_backward(run, dvkq, ddt, steps.a_log, steps.dt_bias, steps.past, da,
                            saved.chunks, saved.vkq, steps.dt, state_heads(), bounds);
  ops::ffn_act_backward(run, {}, dprojected, dvkq, {}, dvkq, {}, saved.projected, {}, act);
  ops::zero(run, dx);
  const ops::Operand operands[] = {
      {v, part(dprojected, 0)}, {k, part(dprojected, 1)}, {q, part(dprojected, 2)}, {z, dz}};
  for (const auto& [w, grad] : operands) {
    ops::matmul_dw(run, w, grad, x, all);
    ops::matmul_dx_acc(run, dx, grad, w, all);
  }
}

}  // namespace moe
