#include "moe/layer.h"

#include <array>

#include "moe/banks.h"
#include "moe/stages/stage_math.h"

namespace moe {
namespace {

// Whether the shared experts' products pass beside the routed ones': where tokens are so few that
// reading weights takes longer than multiplying, and where weights are quantised, since tokens then
// become bytes once for both.
bool side_by_side(const ExpertBank& experts, Tensor x) {
  constexpr int64_t kFewTokens = 4;
  return x.rows() <= kFewTokens || is_quantised(experts.up.value.dtype);
}

// What the shared experts see: every token, weighed by its gate where there is one.
Rows shared_rows_of(Run& run, Tensor x, Param& gate) {
  Tensor weight;  // [N]
  if (gate.present()) {
    const std::array<int64_t, 2> all = {0, x.rows()};
    weight = run.saved.alloc(DType::f32, {x.rows()});
    ops::matmul_forward(run, weight.reshape({x.rows(), 1}), x, gate, all);
    for (int64_t n = 0; n < x.rows(); ++n) weight.as<float>()[n] = sigmoid(weight.as<float>()[n]);
  }
  return whole(run.saved, x, weight);
}

}  // namespace

void MoeLayer::forward(Run& run, Tensor y, Tensor x, const Pass& pass, Saved& saved) {
  saved.experts = saved.shared = {};
  if (!router) {
    saved.rows = whole(run.saved, x);
    experts.forward(run, y, saved.rows, saved.experts);
    return;
  }
  saved.plan =
      router->forward(run, x, pass, pass.key_of(router->layer, Site::router), saved.router);
  saved.rows = dispatch(run, x, saved.plan, group, pass.same_everywhere);
  ArenaScope scope(run.scratch);
  Tensor out = run.scratch.alloc(
      DType::f32,
      {saved.rows.x.rows(), x.cols()});  // f32, so that one expert gives the bits of a dense layer
  if (!shared) {
    experts.forward(run, out, saved.rows, saved.experts);
    combine(run, y, out, saved.plan, saved.rows);
    return;
  }
  saved.shared_rows = shared_rows_of(run, x, shared_gate);
  const BankPass passes[] = {{&experts, out, &saved.rows, &saved.experts},
                             {&*shared, y, &saved.shared_rows, &saved.shared}};
  if (side_by_side(experts, x)) {
    forward_banks(run, passes);
  } else {
    for (const BankPass& bank : passes) forward_banks(run, std::span(&bank, 1));
  }
  combine_acc(run, y, out, saved.plan, saved.rows);
}

void MoeLayer::backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Pass& pass,
                        const RoutingLosses& coef, const Saved& saved) {
  if (router) {
    ArenaScope scope(run.scratch);
    // A router without a matrix learns nothing from the weights' gradient.
    const int64_t rows = saved.rows.x.rows();
    Tensor dweight =
        router->logit.weight.present() ? run.scratch.alloc(DType::f32, {rows}) : Tensor{};
    Tensor drows = run.scratch.alloc(x.dtype, {rows, x.cols()});
    experts.backward(run, drows, dweight, dispatch(run, dy, saved.plan, saved.rows), saved.rows,
                     saved.experts);
    combine(run, dx, drows, saved.plan, saved.rows);
    router->backward_acc(run, dx, return_rows(run, dweight, saved.plan, saved.rows), saved.plan,
                         pass, coef, saved.router);
  } else {
    experts.backward(run, dx, {}, dy, saved.rows, saved.experts);
  }
  if (shared) shared_backward(run, dx, dy, x, saved);
}

// With s the gate's sigmoid: d(logit) = dweight * s (1 - s).
void MoeLayer::shared_backward(Run& run, Tensor dx, Tensor dy, Tensor x, const Saved& saved) {
  ArenaScope scope(run.scratch);
  const Tensor weight = saved.shared_rows.weight;
  Tensor dweight = weight.empty() ? Tensor{} : run.scratch.alloc(DType::f32, {x.rows()});
  Tensor dshared = run.scratch.alloc(DType::f32, {x.rows(), x.cols()});
  shared->backward(run, dshared, dweight, dy, saved.shared_rows, saved.shared);
  ops::add(run, dx, dx, dshared);
  if (weight.empty()) return;
  const std::array<int64_t, 2> all = {0, x.rows()};
  for (int64_t n = 0; n < x.rows(); ++n) {
    const float s = weight.as<float>()[n];
    dweight.as<float>()[n] *= s * (1 - s);
  }
  Tensor dlogit = run.scratch.alloc(x.dtype, {x.rows(), 1});
  ops::cast(run, dlogit, dweight.reshape({x.rows(), 1}));
  ops::matmul_dw(run, shared_gate, dlogit, x, all);
  ops::matmul_dx_acc(run, dx, dlogit, shared_gate, all);
}

}  // namespace moe
