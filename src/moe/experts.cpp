#include "moe/experts.h"

namespace moe {

void ExpertBank::forward(Run& run, Tensor out, const Rows& rows, Saved& saved) {
  const int64_t count = rows.x.rows();
  const auto project = [&](Param& weight, const Param& bias) {
    Tensor y = run.saved.alloc(rows.x.dtype, {count, width()});
    ops::matmul_forward(run, y, rows.x, weight, rows.offsets);
    if (bias.present()) ops::bias_forward_acc(run, y, bias, {}, rows.offsets);
    return y;
  };
  saved = {};
  if (gate.present()) saved.gate = project(gate, gate_bias);
  saved.up = project(up, up_bias);

  ArenaScope scope(run.scratch);
  Tensor hidden = run.scratch.alloc(rows.x.dtype, {count, width()});
  ops::ffn_act_forward(run, hidden, saved.gate, saved.up, rows.weight, act);
  ops::matmul_forward(run, out, hidden, down, rows.offsets);
  if (down_bias.present()) ops::bias_forward_acc(run, out, down_bias, rows.weight, rows.offsets);
}

// With h = weight * a:  dh = dout Wdown,  dWdown += dout^T h,  dweight = <dh, a> + <dout, bdown>.
void ExpertBank::backward(Run& run, Tensor dx, Tensor dweight, Tensor dout, const Rows& rows, const Saved& saved) {
  ArenaScope scope(run.scratch);
  const DType dtype = rows.x.dtype;
  const int64_t count = rows.x.rows();
  Tensor hidden = run.scratch.alloc(dtype, {count, width()});  // first its gradient, then itself recomputed
  ops::matmul_dx(run, hidden, dout, down, rows.offsets);
  Tensor dgate = saved.gate.empty() ? Tensor{} : run.scratch.alloc(dtype, {count, width()});
  Tensor dup = run.scratch.alloc(dtype, {count, width()});
  ops::ffn_act_backward(run, dgate, dup, hidden, dweight, hidden, saved.gate, saved.up, rows.weight, act);
  ops::matmul_dw(run, down, dout, hidden, rows.offsets);
  if (down_bias.present()) ops::bias_backward(run, dweight, down_bias, dout, rows.weight, rows.offsets);

  const auto project_back = [&](Param& weight, Param& bias, Tensor dy) {
    ops::matmul_dw(run, weight, dy, rows.x, rows.offsets);
    if (bias.present()) ops::bias_backward(run, {}, bias, dy, {}, rows.offsets);
  };
  ops::matmul_dx(run, dx, dup, up, rows.offsets);
  project_back(up, up_bias, dup);
  if (dgate.empty()) return;
  ops::matmul_dx_acc(run, dx, dgate, gate, rows.offsets);
  project_back(gate, gate_bias, dgate);
}

}  // namespace moe
