#include "model/gated_conv.h"

#include <array>

namespace moe {

void GatedConv::forward(Run& run, Tensor y, Tensor in, const Pass& pass, int64_t layer,
                        Saved& saved) {
  const std::array<int64_t, 2> all = {0, in.rows()};
  for (Tensor* t : {&saved.b, &saved.c, &saved.x, &saved.gated, &saved.convolved})
    *t = run.saved.alloc(in.dtype, {in.rows(), in.cols()});
  ops::matmul_forward(run, {{b, saved.b}, {c, saved.c}, {x, saved.x}}, in, all);
  ops::multiply(run, saved.gated, saved.b, saved.x);
  std::vector<float*> states;
  if (pass.cache) states = pass.cache->states(layer, pass.batch);
  ops::short_conv_forward(run, saved.convolved, saved.gated, conv, {}, pass.batch.bounds, states,
                          ops::ConvAct::none);
  const ArenaScope scope(run.scratch);
  Tensor out = run.scratch.alloc(in.dtype, {in.rows(), in.cols()});
  ops::multiply(run, out, saved.c, saved.convolved);
  ops::matmul_forward(run, y, out, o, all);
}

void GatedConv::backward(Run& run, Tensor dx, Tensor dy, Tensor in, const Pass& pass,
                         const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, in.rows()};
  const auto alloc = [&] { return run.scratch.alloc(in.dtype, {in.rows(), in.cols()}); };
  Tensor out = alloc(), dout = alloc(), dc = alloc();
  ops::multiply(run, out, saved.c, saved.convolved);
  ops::matmul_dw(run, o, dy, out, all);
  ops::matmul_dx(run, dout, dy, o, all);
  ops::multiply(run, dc, dout, saved.convolved);
  ops::multiply(run, dout, dout, saved.c);
  Tensor dgated = out, db = alloc();  // the memory of `out`
  Param no_bias;
  ops::short_conv_backward(run, dgated, conv, no_bias, dout, saved.gated, pass.batch.bounds,
                           ops::ConvAct::none);
  ops::multiply(run, db, dgated, saved.x);
  ops::multiply(run, dgated, dgated, saved.b);
  ops::zero(run, dx);
  const ops::Operand operands[] = {{b, db}, {c, dc}, {x, dgated}};
  for (const auto& [w, grad] : operands) {
    ops::matmul_dw(run, w, grad, in, all);
    ops::matmul_dx_acc(run, dx, grad, w, all);
  }
}

}  // namespace moe
