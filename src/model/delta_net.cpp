#include "model/delta_net.h"

#include <array>

namespace moe {

void DeltaNet::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer,
                       Saved& saved) {
  const int64_t n = x.rows(), keys = shape.k_width(), values = shape.v_width();
  const std::array<int64_t, 2> all = {0, n};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto alloc = [&](DType dtype, int64_t cols) { return run.saved.alloc(dtype, {n, cols}); };
  saved.projected = alloc(x.dtype, shape.channels());
  saved.qkv = alloc(x.dtype, shape.channels());
  saved.z = alloc(x.dtype, values);
  for (Tensor* t : {&saved.b, &saved.a, &saved.log_decay, &saved.strength})
    *t = alloc(DType::f32, shape.value_heads);
  ops::matmul_forward(run,
                      {{q, saved.projected.slice_cols(0, keys)},
                       {k, saved.projected.slice_cols(keys, 2 * keys)},
                       {v, saved.projected.slice_cols(2 * keys, shape.channels())},
                       {z, saved.z}},
                      x, all);
  ops::matmul_forward_f32(run, saved.b, x, b, all);
  ops::matmul_forward_f32(run, saved.a, x, a, all);

  std::vector<float*> conv_states, states;
  if (pass.cache) conv_states = pass.cache->states(layer, pass.batch);
  for (float* state : conv_states) states.push_back(state + shape.conv_state());
  ops::short_conv_forward(run, saved.qkv, saved.projected, conv, bounds, conv_states,
                          ops::ConvAct::silu);
  ops::delta_gates_forward(run, saved.log_decay, saved.strength, saved.a, saved.b, a_log, dt_bias);
  if (pass.goes_back())
    saved.chunks =
        run.saved.alloc(DType::f32, {ops::delta_chunks(bounds), values * shape.key_width});
  saved.o = alloc(x.dtype, values);
  ops::delta_rule_forward(run, saved.o, saved.chunks, saved.qkv, saved.log_decay, saved.strength,
                          heads(), bounds, states);
  saved.normed = alloc(x.dtype, values);
  norm.forward(run, by_head(saved.normed), by_head(saved.o), saved.norm);
  const ArenaScope scope(run.scratch);
  Tensor gated = run.scratch.alloc(x.dtype, {n, values});
  ops::ffn_act_forward(run, gated, saved.z, saved.normed, {}, ops::Act::silu);
  ops::matmul_forward(run, y, gated, o, all);
}

void DeltaNet::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                        const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const int64_t n = x.rows(), keys = shape.k_width();
  const std::array<int64_t, 2> all = {0, n};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  Tensor dgated = like(saved.normed), dz = like(saved.z), dnormed = like(saved.normed);
  ops::matmul_dx(run, dgated, dy, o, all);
  ops::ffn_act_backward(run, dz, dnormed, dgated, {}, dgated, saved.z, saved.normed, {},
                        ops::Act::silu);
  ops::matmul_dw(run, o, dy, dgated, all);
  Tensor do_ = dgated;  // its memory
  norm.backward(run, by_head(do_), by_head(dnormed), saved.norm);

  Tensor dqkv = like(saved.qkv), dprojected = like(saved.projected), da = like(saved.a),
         db = like(saved.b);
  ops::delta_rule_backward(run, dqkv, da, db, do_, saved.chunks, saved.qkv, saved.log_decay,
                           saved.strength, heads(), bounds);
  ops::delta_gates_backward(run, da, db, a_log, dt_bias, da, db, saved.a, saved.b);
  ops::short_conv_backward(run, dprojected, conv, dqkv, saved.projected, bounds,
                           ops::ConvAct::silu);

  const ops::Operand operands[] = {{q, dprojected.slice_cols(0, keys)},
                                   {k, dprojected.slice_cols(keys, 2 * keys)},
                                   {v, dprojected.slice_cols(2 * keys, shape.channels())},
                                   {z, dz},
                                   {b, db},
                                   {a, da}};
  ops::zero(run, dx);
  for (const auto& [w, grad] : operands) {
    ops::matmul_dw(run, w, grad, x, all);
    ops::matmul_dx_acc(run, dx, grad, w, all);
  }
}

}  // namespace moe
