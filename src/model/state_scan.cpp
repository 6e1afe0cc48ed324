#include "model/state_scan.h"

#include <array>

namespace moe {
namespace {

// Numbers [begin, end) of a vector that may be absent.
Tensor part_of(const Tensor& vector, int64_t begin, int64_t end) {
  if (vector.empty()) return {};
  return Tensor(static_cast<char*>(vector.data) + bytes_of(vector.dtype, begin), vector.dtype,
                {end - begin});
}

}  // namespace

// A view of a group's weights, for one call of an op.
Param StateScan::norm_of(int64_t group) const {
  const int64_t width = shape.values() / shape.groups, begin = group * width;
  Param part;
  part.role = norm.role;
  part.value = part_of(norm.value, begin, begin + width);
  part.grad = part_of(norm.grad, begin, begin + width);
  return part;
}

void StateScan::multiply(Run& run, Tensor of_z, Tensor of_xbc, Tensor of_dt) const {
  const int64_t values = shape.values(), read = values + shape.groups * shape.states;
  const Tensor parts[] = {of_z, of_xbc.slice_cols(0, values), of_xbc.slice_cols(values, read),
                          of_xbc.slice_cols(read, shape.channels()), of_dt};
  for (size_t i = 0; i < factors.size(); ++i)
    if (factors[i] != 1) ops::scale(run, parts[i], parts[i], factors[i]);
}

void StateScan::norm_forward(Run& run, Tensor y, const Saved& saved) const {
  for (int64_t g = 0; g < shape.groups; ++g)
    ops::rms_norm_forward(run, of_group(y, g), saved.rstd[static_cast<size_t>(g)],
                          of_group(saved.gated, g), norm_of(g), eps);
}

void StateScan::norm_backward(Run& run, Tensor dx, Tensor dy, const Saved& saved) {
  if (!norm.grad.empty()) ops::settle_grad(run, norm);
  for (int64_t g = 0; g < shape.groups; ++g) {
    Param weight = norm_of(g);
    ops::rms_norm_backward(run, of_group(dx, g), weight, of_group(dy, g), of_group(saved.gated, g),
                           saved.rstd[static_cast<size_t>(g)]);
  }
}

void StateScan::forward(Run& run, Tensor y, Tensor x, const Pass& pass, int64_t layer,
                        Saved& saved) {
  const int64_t n = x.rows(), values = shape.values();
  const std::array<int64_t, 2> all = {0, n};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto alloc = [&](DType dtype, int64_t cols) { return run.saved.alloc(dtype, {n, cols}); };
  for (Tensor* t : {&saved.projected, &saved.xbc}) *t = alloc(x.dtype, shape.channels());
  for (Tensor* t : {&saved.z, &saved.scanned, &saved.gated}) *t = alloc(x.dtype, values);
  saved.dt = alloc(DType::f32, shape.heads);
  saved.rstd.clear();
  for (int64_t g = 0; norm.present() && g < shape.groups; ++g)
    saved.rstd.push_back(run.saved.alloc(DType::f32, {n}));
  ops::matmul_forward(run, {{z, saved.z}, {xbc, saved.projected}}, x, all);
  ops::matmul_forward_f32(run, saved.dt, x, dt, all);
  multiply(run, saved.z, saved.projected, saved.dt);

  std::vector<float*> conv_states, states;
  if (pass.cache) conv_states = pass.cache->states(layer, pass.batch);
  for (float* state : conv_states) states.push_back(state + shape.conv_state());
  ops::short_conv_forward(run, saved.xbc, saved.projected, conv, conv_bias, bounds, conv_states,
                          ops::ConvAct::silu);
  if (pass.goes_back())
    saved.chunks = run.saved.alloc(DType::f32, {ops::delta_chunks(bounds), values * shape.states});
  ops::state_space_forward(run, saved.scanned, saved.chunks, saved.xbc, saved.dt, a_log, dt_bias,
                           skip, heads(), bounds, states);
  ops::ffn_act_forward(run, saved.gated, saved.z, saved.scanned, {}, ops::Act::silu);
  if (!norm.present()) return ops::matmul_forward(run, y, saved.gated, o, all);
  const ArenaScope scope(run.scratch);
  const Tensor normed = run.scratch.alloc(x.dtype, {n, values});
  norm_forward(run, normed, saved);
  ops::matmul_forward(run, y, normed, o, all);
}

void StateScan::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                         const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  const Tensor normed = like(saved.gated), dnormed = like(saved.gated), dz = like(saved.z);
  const Tensor dgated = normed, dscanned = dnormed;  // their memory
  if (norm.present()) {
    norm_forward(run, normed, saved);
    ops::matmul_dw(run, o, dy, normed, all);
    ops::matmul_dx(run, dnormed, dy, o, all);
    norm_backward(run, dgated, dnormed, saved);
  } else {
    ops::matmul_dw(run, o, dy, saved.gated, all);
    ops::matmul_dx(run, dgated, dy, o, all);
  }
  ops::ffn_act_backward(run, dz, dscanned, dgated, {}, dgated, saved.z, saved.scanned, {},
                        ops::Act::silu);

  const Tensor dxbc = like(saved.xbc), dprojected = like(saved.projected), ddt = like(saved.dt);
  ops::state_space_backward(run, dxbc, ddt, a_log, dt_bias, skip, dscanned, saved.chunks, saved.xbc,
                            saved.dt, heads(), bounds);
  ops::short_conv_backward(run, dprojected, conv, conv_bias, dxbc, saved.projected, bounds,
                           ops::ConvAct::silu);
  multiply(run, dz, dprojected, ddt);
  ops::zero(run, dx);
  const auto back = [&](Param& w, Tensor grad) {
    ops::matmul_dw(run, w, grad, x, all);
    ops::matmul_dx_acc(run, dx, grad, w, all);
  };
  back(z, dz);
  back(xbc, dprojected);
  back(dt, ddt);
}

}  // namespace moe
