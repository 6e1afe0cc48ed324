#include "model/delta_net.h"

#include <array>

namespace moe {

// Queries, keys and values side by side, gates, and what strengths and decays are made of.
void DeltaNet::project(Run& run, Tensor x, Saved& saved) {
  const int64_t n = x.rows(), keys = shape.k_width(), rest = shape.channels();
  const std::array<int64_t, 2> all = {0, n};
  const Tensor qs = saved.projected.slice_cols(0, keys),
               ks = saved.projected.slice_cols(keys, 2 * keys),
               vs = saved.projected.slice_cols(2 * keys, rest);
  if (shape.gate_width > 0) {
    saved.z_in = run.saved.alloc(x.dtype, {n, shape.gate_width});
    saved.a_in = run.saved.alloc(x.dtype, {n, shape.gate_width});
    ops::matmul_forward(run, {{q, qs}, {k, ks}, {v, vs}, {z_in, saved.z_in}, {a_in, saved.a_in}}, x,
                        all);
    ops::matmul_forward(run, saved.z, saved.z_in, z, all);
    ops::matmul_forward(run, saved.a, saved.a_in, a, all);
  } else if (shape.by_channel()) {
    ops::matmul_forward(run, {{q, qs}, {k, ks}, {v, vs}, {z, saved.z}}, x, all);
    ops::matmul_forward(run, saved.a, x, a, all);
  } else {
    ops::matmul_forward(run, {{q, qs}, {k, ks}, {v, vs}, {z, saved.z}}, x, all);
    ops::matmul_forward_f32(run, saved.a, x, a, all);
  }
  ops::matmul_forward_f32(run, saved.b, x, b, all);
}

void DeltaNet::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer,
                       Saved& saved) {
  const int64_t n = x.rows(), values = shape.v_width();
  const std::array<int64_t, 2> all = {0, n};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto alloc = [&](DType dtype, int64_t cols) { return run.saved.alloc(dtype, {n, cols}); };
  saved.projected = alloc(x.dtype, shape.channels());
  saved.qkv = alloc(x.dtype, shape.channels());
  saved.z = alloc(x.dtype, values);
  for (Tensor* t : {&saved.b, &saved.strength}) *t = alloc(DType::f32, shape.value_heads);
  for (Tensor* t : {&saved.a, &saved.log_decay}) *t = alloc(DType::f32, shape.decays());
  project(run, x, saved);

  std::vector<float*> conv_states, states;
  if (pass.cache) conv_states = pass.cache->states(layer, pass.batch);
  for (float* state : conv_states) states.push_back(state + shape.conv_state());
  ops::short_conv_forward(run, saved.qkv, saved.projected, conv, {}, bounds, conv_states,
                          ops::ConvAct::silu);
  ops::delta_gates_forward(run, saved.log_decay, saved.strength, saved.a, saved.b, a_log, dt_bias,
                           shape.most_strength(), shape.decay_floor);
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
  ops::ffn_act_forward(run, gated, saved.z, saved.normed, {}, gate_act());
  ops::matmul_forward(run, y, gated, o, all);
}

void DeltaNet::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                        const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  Tensor dgated = like(saved.normed), dz = like(saved.z), dnormed = like(saved.normed);
  ops::matmul_dx(run, dgated, dy, o, all);
  ops::ffn_act_backward(run, dz, dnormed, dgated, {}, dgated, saved.z, saved.normed, {},
                        gate_act());
  ops::matmul_dw(run, o, dy, dgated, all);
  Tensor do_ = dgated;  // its memory
  norm.backward(run, by_head(do_), by_head(dnormed), saved.norm);

  Tensor dqkv = like(saved.qkv), dprojected = like(saved.projected), da = like(saved.a),
         db = like(saved.b);
  ops::delta_rule_backward(run, dqkv, da, db, do_, saved.chunks, saved.qkv, saved.log_decay,
                           saved.strength, heads(), bounds);
  ops::delta_gates_backward(run, da, db, a_log, dt_bias, da, db, saved.a, saved.b,
                            shape.most_strength(), shape.decay_floor);
  Param no_bias;
  ops::short_conv_backward(run, dprojected, conv, no_bias, dqkv, saved.projected, bounds,
                           ops::ConvAct::silu);
  project_backward(run, dx, dprojected, dz, da, db, x, saved);
}

void DeltaNet::project_backward(Run& run, Tensor dx, Tensor dprojected, Tensor dz, Tensor da,
                                Tensor db, Tensor x, const Saved& saved) {
  const int64_t keys = shape.k_width();
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto back = [&](Param& w, Tensor grad) {
    ops::matmul_dw(run, w, grad, x, all);
    ops::matmul_dx_acc(run, dx, grad, w, all);
  };
  ops::zero(run, dx);
  back(q, dprojected.slice_cols(0, keys));
  back(k, dprojected.slice_cols(keys, 2 * keys));
  back(v, dprojected.slice_cols(2 * keys, shape.channels()));
  const bool made = shape.gate_width > 0;
  if (made) made_backward(run, dx, z, z_in, dz, saved.z_in, x);
  else back(z, dz);
  back(b, db);
  if (made) made_backward(run, dx, a, a_in, da, saved.a_in, x);
  else back(a, shape.by_channel() ? in_type(run, da, x.dtype) : da);
}

Tensor DeltaNet::in_type(Run& run, Tensor x, DType dtype) const {
  if (x.dtype == dtype) return x;
  const Tensor y = run.scratch.alloc(dtype, {x.rows(), x.cols()});
  ops::cast(run, y, x);
  return y;
}

// Of out (in x), where in x = made. The products are those of the activations' type.
void DeltaNet::made_backward(Run& run, Tensor dx, Param& out, Param& in, Tensor dy, Tensor made,
                             Tensor x) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  dy = in_type(run, dy, x.dtype);
  const Tensor dmade = run.scratch.alloc(x.dtype, {made.rows(), made.cols()});
  ops::matmul_dw(run, out, dy, made, all);
  ops::matmul_dx(run, dmade, dy, out, all);
  ops::matmul_dw(run, in, dmade, x, all);
  ops::matmul_dx_acc(run, dx, dmade, in, all);
}

}  // namespace moe
