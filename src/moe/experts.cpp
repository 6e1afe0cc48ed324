#include "moe/experts.h"

#include <vector>

#include "moe/banks.h"
#include "ops/banks.h"

namespace moe {

ops::GatheredRows ExpertBank::given(Run& run, const Rows& rows) const {
  if (!weighs_input) return rows.x;
  Tensor x = run.scratch.alloc(rows.x.x.dtype, {rows.x.rows(), rows.x.cols()});
  ops::weigh_rows_forward(run, x, rows.x, rows.weight);
  return x;
}

void ExpertBank::forward(Run& run, Tensor out, const Rows& rows, Saved& saved) {
  const BankPass pass{this, out, &rows, &saved};
  forward_banks(run, std::span(&pass, 1));
}

void forward_banks(Run& run, std::span<const BankPass> passes) {
  const ArenaScope scope(run.scratch);
  std::vector<ops::BankOperands> products;
  std::vector<Tensor> hidden;  // [R,F] of each
  for (const auto& [bank, out, rows, saved] : passes) {
    const DType dtype = rows->x.x.dtype;
    const int64_t count = rows->x.rows(), width = bank->width();
    std::vector<ops::Operand> operands;
    const auto fill = [&](Param& w, Tensor& y) {
      if (y.empty()) y = run.saved.alloc(dtype, {count, width});
      operands.push_back({w, y});
    };
    if (bank->gate.present()) fill(bank->gate, saved->gate);
    fill(bank->up, saved->up);
    hidden.push_back(run.scratch.alloc(dtype, {count, width}));
    products.push_back({std::move(operands), bank->given(run, *rows), rows->offsets});
    const bool multiplied = bank->gate_factor != 1 || bank->down_factor != 1;
    if (!bank->gate_bias.present() && !bank->up_bias.present() && !bank->xielu && !multiplied)
      products.back().hidden = {hidden.back(), bank->weight_behind(*rows), bank->act};
  }
  ops::matmul_forward_banks(run, products);

  std::vector<ops::BankOperands> down;
  for (size_t i = 0; i < passes.size(); ++i) {
    const auto& [bank, out, rows, saved] = passes[i];
    down.push_back({{{bank->down, out}}, hidden[i], rows->offsets});
    if (products[i].hidden) continue;
    if (bank->gate_bias.present())
      ops::bias_forward_acc(run, saved->gate, bank->gate_bias, {}, rows->offsets);
    if (bank->up_bias.present())
      ops::bias_forward_acc(run, saved->up, bank->up_bias, {}, rows->offsets);
    if (bank->gate_factor != 1) ops::scale(run, saved->gate, saved->gate, bank->gate_factor);
    if (const auto& x = bank->xielu)
      ops::xielu_forward(run, hidden[i], saved->up, x->alpha_p, x->alpha_n, x->beta, x->eps);
    else
      ops::ffn_act_forward(run, hidden[i], saved->gate, saved->up, bank->weight_behind(*rows),
                           bank->act);
    if (bank->down_factor != 1) ops::scale(run, hidden[i], hidden[i], bank->down_factor);
  }
  ops::matmul_forward_banks(run, down);
  for (const auto& [bank, out, rows, saved] : passes)
    if (bank->down_bias.present())
      ops::bias_forward_acc(run, out, bank->down_bias, bank->weight_behind(*rows), rows->offsets);
}

// With h = weight * a:  dh = dout Wdown,  dWdown += dout^T h,  dweight = <dh, a> + <dout, bdown>.
// Where the weight is of the input, u = weight x:  dx = weight du,  dweight = <du, x>.
void ExpertBank::backward(Run& run, Tensor dx, Tensor dweight, ops::GatheredRows dout,
                          const Rows& rows, const Saved& saved) {
  ArenaScope scope(run.scratch);
  const DType dtype = rows.x.x.dtype;
  const int64_t count = rows.x.rows();
  const Tensor behind = weight_behind(rows), dbehind = weighs_input ? Tensor{} : dweight;
  dout = ops::laid_out(run, dout);
  // first its gradient, then itself recomputed
  Tensor hidden = run.scratch.alloc(dtype, {count, width()});
  ops::matmul_dx(run, hidden, dout, down, rows.offsets);
  if (down_factor != 1) ops::scale(run, hidden, hidden, down_factor);
  Tensor dgate = saved.gate.empty() ? Tensor{} : run.scratch.alloc(dtype, {count, width()});
  Tensor dup = run.scratch.alloc(dtype, {count, width()});
  if (xielu)
    ops::xielu_backward(run, dup, hidden, xielu->alpha_p, xielu->alpha_n, hidden, saved.up,
                        xielu->beta, xielu->eps);
  else
    ops::ffn_act_backward(run, dgate, dup, hidden, dbehind, hidden, saved.gate, saved.up, behind,
                          act);
  if (down_factor != 1) ops::scale(run, hidden, hidden, down_factor);
  if (gate_factor != 1) ops::scale(run, dgate, dgate, gate_factor);
  ops::matmul_dw(run, down, dout, hidden, rows.offsets);
  if (down_bias.present()) ops::bias_backward(run, dbehind, down_bias, dout, behind, rows.offsets);

  const ops::GatheredRows x = given(run, rows);
  if (dgate.empty()) {
    ops::matmul_dx(run, dx, dup, up, rows.offsets);
    ops::matmul_dw(run, up, dup, x, rows.offsets);
  } else {
    ops::matmul_dx(run, dx, {{up, dup}, {gate, dgate}}, rows.offsets);
    ops::matmul_dw(run, {{up, dup}, {gate, dgate}}, x, rows.offsets);
  }
  if (weighs_input) ops::weigh_rows_backward(run, dx, dweight, dx, rows.x, rows.weight);
  if (up_bias.present()) ops::bias_backward(run, {}, up_bias, dup, {}, rows.offsets);
  if (gate_bias.present()) ops::bias_backward(run, {}, gate_bias, dgate, {}, rows.offsets);
}

}  // namespace moe
