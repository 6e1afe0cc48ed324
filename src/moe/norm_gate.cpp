#include "moe/norm_gate.h"

#include <array>

namespace moe {

void NormGate::forward(Run& run, Tensor y, Tensor n, Saved& saved) {
  const std::array<int64_t, 2> all = {0, n.rows()};
  saved = {n, run.saved.alloc(n.dtype, {n.rows(), down.value.rows()}),
           run.saved.alloc(n.dtype, {n.rows(), n.cols()})};
  ops::matmul_forward(run, saved.low, n, down, all);
  const ArenaScope scope(run.scratch);
  const Tensor hidden = run.scratch.alloc(n.dtype, {n.rows(), saved.low.cols()});
  ops::ffn_act_forward(run, hidden, {}, saved.low, {}, ops::Act::silu);
  ops::matmul_forward(run, saved.z, hidden, up, all);
  ops::ffn_act_forward(run, y, saved.z, n, {}, ops::Act::sigmoid);
}

// With g the sigmoid and s the silu: dz = dy n g'(z), and n gets dy g(z) and what comes back
// through down.
void NormGate::backward(Run& run, Tensor dn, Tensor dy, const Saved& saved) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, dy.rows()};
  const auto like = [&](const Tensor& t) {
    return run.scratch.alloc(t.dtype, {t.rows(), t.cols()});
  };
  const Tensor d = like(saved.n), dz = like(saved.z), direct = like(saved.n),
               hidden = like(saved.low), dhidden = like(saved.low), dlow = like(saved.low);
  ops::cast(run, d, dy);
  ops::ffn_act_backward(run, dz, direct, d, {}, d, saved.z, saved.n, {}, ops::Act::sigmoid);
  ops::ffn_act_forward(run, hidden, {}, saved.low, {}, ops::Act::silu);
  ops::matmul_dw(run, up, dz, hidden, all);
  ops::matmul_dx(run, dhidden, dz, up, all);
  ops::ffn_act_backward(run, {}, dlow, dhidden, {}, dhidden, {}, saved.low, {}, ops::Act::silu);
  ops::matmul_dw(run, down, dlow, saved.n, all);
  ops::cast(run, dn, direct);
  ops::matmul_dx_acc(run, dn, dlow, down, all);
}

}  // namespace moe
