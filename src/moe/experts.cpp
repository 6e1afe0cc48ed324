#include "moe/experts.h"

namespace moe {

void ExpertBank::forward(Run& run, Tensor out, const Rows& rows, Saved& saved) {
  const DType dtype = rows.x.x.dtype;
  const int64_t count = rows.x.rows();
  saved = {};
  if (gate.present()) saved.gate = run.saved.alloc(dtype, {count, width()});
  saved.up = run.saved.alloc(dtype, {count, width()});
  if (gate.present()) ops::matmul_forward(run, {{gate, saved.gate}, {up, saved.up}}, rows.x, rows.offsets);
  else ops::matmul_forward(run, saved.up, rows.x, up, rows.offsets);
  if (gate_bias.present()) ops::bias_forward_acc(run, saved.gate, gate_bias, {}, rows.offsets);
  if (up_bias.present()) ops::bias_forward_acc(run, saved.up, up_bias, {}, rows.offsets);

  ArenaScope scope(run.scratch);
  Tensor hidden = run.scratch.alloc(dtype, {count, width()});
  ops::ffn_act_forward(run, hidden, saved.gate, saved.up, rows.weight, act);
  ops::matmul_forward(run, out, hidden, down, rows.offsets);
  if (down_bias.present()) ops::bias_forward_acc(run, out, down_bias, rows.weight, rows.offsets);
}

// With h = weight * a:  dh = dout Wdown,  dWdown += dout^T h,  dweight = <dh, a> + <dout, bdown>.
void ExpertBank::backward(Run& run, Tensor dx, Tensor dweight, ops::Picked dout, const Rows& rows, const Saved& saved) {
  ArenaScope scope(run.scratch);
  const DType dtype = rows.x.x.dtype;
  const int64_t count = rows.x.rows();
  Tensor hidden = run.scratch.alloc(dtype, {count, width()});  // first its gradient, then itself recomputed
  ops::matmul_dx(run, hidden, dout, down, rows.offsets);
  Tensor dgate = saved.gate.empty() ? Tensor{} : run.scratch.alloc(dtype, {count, width()});
  Tensor dup = run.scratch.alloc(dtype, {count, width()});
  ops::ffn_act_backward(run, dgate, dup, hidden, dweight, hidden, saved.gate, saved.up, rows.weight, act);
  ops::matmul_dw(run, down, dout, hidden, rows.offsets);
  if (down_bias.present()) ops::bias_backward(run, dweight, down_bias, dout, rows.weight, rows.offsets);

  if (dgate.empty()) {
    ops::matmul_dx(run, dx, dup, up, rows.offsets);
    ops::matmul_dw(run, up, dup, rows.x, rows.offsets);
  } else {
    ops::matmul_dx(run, dx, {{up, dup}, {gate, dgate}}, rows.offsets);
    ops::matmul_dw(run, {{up, dup}, {gate, dgate}}, rows.x, rows.offsets);
  }
  if (up_bias.present()) ops::bias_backward(run, {}, up_bias, dup, {}, rows.offsets);
  if (gate_bias.present()) ops::bias_backward(run, {}, gate_bias, dgate, {}, rows.offsets);
}

}  // namespace moe
