#include "model/selective_scan.h"

#include <vector>

namespace moe {

void SelectiveScan::forward(Run& run, Tensor y, Tensor in, const Pass& pass, int64_t layer,
                            Saved& saved) {
  const int64_t n = in.rows();
  const std::array<int64_t, 2> all = {0, n};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto alloc = [&](DType dtype, int64_t cols) { return run.saved.alloc(dtype, {n, cols}); };
  for (Tensor* t : {&saved.projected, &saved.seen, &saved.z, &saved.dt, &saved.scanned})
    *t = alloc(in.dtype, shape.values());
  saved.made = alloc(in.dtype, shape.made());
  ops::matmul_forward(run, {{z, saved.z}, {x, saved.projected}}, in, all);

  std::vector<float*> conv_states, states;
  if (pass.cache) conv_states = pass.cache->states(layer, pass.batch);
  for (float* state : conv_states) states.push_back(state + shape.conv_state());
  ops::short_conv_forward(run, saved.seen, saved.projected, conv, conv_bias, bounds, conv_states,
                          ops::ConvAct::silu);
  ops::matmul_forward(run, saved.made, saved.seen, made, all);
  saved.steps = of_step(saved.made);
  saved.bc = of_bc(saved.made);
  saved.rstd = {};
  if (has_norms()) {
    saved.steps = alloc(in.dtype, shape.step_rank);
    saved.bc = alloc(in.dtype, 2 * shape.states);
    for (size_t i = 0; i < saved.rstd.size(); ++i) {
      saved.rstd[i] = run.saved.alloc(DType::f32, {n});
      ops::rms_norm_forward(run, part_of(saved.steps, saved.bc, i), saved.rstd[i],
                            part_of(of_step(saved.made), of_bc(saved.made), i), norm_of(i), eps);
    }
  }
  ops::matmul_forward(run, saved.dt, saved.steps, step, all);
  saved.chunks = {};
  if (pass.goes_back())
    saved.chunks =
        run.saved.alloc(DType::f32, {ops::delta_chunks(bounds), shape.values() * shape.states});
  ops::selective_scan_forward(run, saved.scanned, saved.chunks, saved.seen, saved.dt, saved.bc,
                              a_log, dt_bias, skip, bounds, states);
  const ArenaScope scope(run.scratch);
  const Tensor gated = run.scratch.alloc(in.dtype, {n, shape.values()});
  ops::ffn_act_forward(run, gated, saved.z, saved.scanned, {}, ops::Act::silu);
  ops::matmul_forward(run, y, gated, o, all);
}

void SelectiveScan::backward(Run& run, Tensor dx, Tensor dy, Tensor in, const Pass& pass,
                             const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, in.rows()};
  const std::span<const int64_t> bounds = pass.batch.bounds;
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  const Tensor dgated = like(saved.scanned), dz = like(saved.z), dscanned = like(saved.scanned),
               dseen = like(saved.seen), dmade = like(saved.made),
               dsteps = has_norms() ? like(saved.steps) : of_step(dmade),
               dbc = has_norms() ? like(saved.bc) : of_bc(dmade);
  const Tensor gated = dgated, ddt = dgated, dprojected = dscanned;  // their memory
  ops::matmul_dx(run, dgated, dy, o, all);
  ops::ffn_act_backward(run, dz, dscanned, gated, {}, dgated, saved.z, saved.scanned, {},
                        ops::Act::silu);
  ops::matmul_dw(run, o, dy, gated, all);

  ops::selective_scan_backward(run, dseen, ddt, dbc, a_log, dt_bias, skip, dscanned, saved.chunks,
                               saved.seen, saved.dt, saved.bc, bounds);
  ops::matmul_dw(run, step, ddt, saved.steps, all);
  ops::matmul_dx(run, dsteps, ddt, step, all);
  for (size_t i = 0; has_norms() && i < saved.rstd.size(); ++i)
    ops::rms_norm_backward(run, part_of(of_step(dmade), of_bc(dmade), i), norm_of(i),
                           part_of(dsteps, dbc, i),
                           part_of(of_step(saved.made), of_bc(saved.made), i), saved.rstd[i]);
  ops::matmul_dw(run, made, dmade, saved.seen, all);
  ops::matmul_dx_acc(run, dseen, dmade, made, all);
  ops::short_conv_backward(run, dprojected, conv, conv_bias, dseen, saved.projected, bounds,
                           ops::ConvAct::silu);
  ops::zero(run, dx);
  const auto back = [&](Param& w, Tensor grad) {
    ops::matmul_dw(run, w, grad, in, all);
    ops::matmul_dx_acc(run, dx, grad, w, all);
  };
  back(z, dz);
  back(x, dprojected);
}

}  // namespace moe
