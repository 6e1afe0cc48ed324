#include "moe/neurons.h"

#include <array>

namespace moe {
namespace {

// Up to here a token's own rows of weights, each read once, cost less than all of them.
constexpr int64_t kFewTokens = 32;

Tensor hidden_of(Run& run, const ExpertBank& bank, Tensor kept, const ExpertBank::Saved& saved) {
  Tensor hidden = run.scratch.alloc(saved.up.dtype, {saved.up.rows(), saved.up.cols()});  // [N,F]
  ops::ffn_act_forward(run, hidden, saved.gate, saved.up, {}, bank.act);
  if (!kept.empty()) ops::keep_columns(run, hidden, kept);
  return hidden;
}

// A quantised `down` is widened for this product, which bf16 makes half as long. Its rows would be
// rounded to bytes if they were multiplied as the other matrices' are.
Tensor narrowed(Run& run, Tensor hidden, const Param& down) {
  if (!is_quantised(down.value.dtype) || hidden.dtype == DType::bf16 || !ops::has_bf16_products())
    return hidden;
  Tensor narrow = run.scratch.alloc(DType::bf16, {hidden.rows(), hidden.cols()});
  ops::cast(run, narrow, hidden);
  return narrow;
}

}  // namespace

void neurons_forward(Run& run, ExpertBank& bank, Tensor y, Tensor x, Tensor kept, bool goes_back,
                     ExpertBank::Saved& saved) {
  if (!kept.empty() && !goes_back && x.rows() <= kFewTokens) {
    saved = {};
    return ops::kept_neurons_forward(run, y, x, bank.gate, bank.up, bank.down, kept, bank.act);
  }
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto product = [&] { return run.saved.alloc(x.dtype, {x.rows(), bank.width()}); };
  if (bank.gate.present()) {
    saved = {product(), product()};
    ops::matmul_forward(run, {{bank.gate, saved.gate}, {bank.up, saved.up}}, x, all);
  } else {
    saved = {{}, product()};
    ops::matmul_forward(run, saved.up, x, bank.up, all);
  }
  const ArenaScope scope(run.scratch);
  Tensor hidden = hidden_of(run, bank, kept, saved);
  if (!goes_back) hidden = narrowed(run, hidden, bank.down);
  ops::matmul_dx(run, y, hidden, bank.down, all);
}

// dh = dy down^T where the neuron was kept, ddown += h^T dy.
void neurons_backward(Run& run, ExpertBank& bank, Tensor dx, Tensor dy, Tensor x, Tensor kept,
                      const ExpertBank::Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, x.rows()};
  const auto like = [&] { return run.scratch.alloc(x.dtype, {x.rows(), bank.width()}); };
  Tensor hidden = hidden_of(run, bank, kept, saved), dhidden = like(),
         dgate = saved.gate.empty() ? Tensor{} : like(), dup = like();
  ops::matmul_dw(run, bank.down, hidden, dy, all);
  ops::matmul_forward(run, dhidden, dy, bank.down, all);
  if (!kept.empty()) ops::keep_columns(run, dhidden, kept);
  ops::ffn_act_backward(run, dgate, dup, hidden, {}, dhidden, saved.gate, saved.up, {}, bank.act);
  if (dgate.empty()) {
    ops::matmul_dx(run, dx, dup, bank.up, all);
    ops::matmul_dw(run, bank.up, dup, x, all);
  } else {
    ops::matmul_dx(run, dx, {{bank.up, dup}, {bank.gate, dgate}}, all);
    ops::matmul_dw(run, {{bank.up, dup}, {bank.gate, dgate}}, x, all);
  }
}

}  // namespace moe
