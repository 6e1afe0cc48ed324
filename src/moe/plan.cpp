#include "moe/plan.h"

namespace moe {

Rows whole(Arena& arena, Tensor x, Tensor weight) {
  const std::span offsets(static_cast<int64_t*>(arena.alloc_bytes(2 * sizeof(int64_t))), 2);
  offsets[0] = 0;
  offsets[1] = x.rows();
  return {x, weight, offsets};
}

Rows dispatch(Tensor x, const RoutingPlan& plan) {
  return {{x, plan.token}, plan.weight, plan.offsets};
}

void combine(Run& run, Tensor y, Tensor x, const RoutingPlan& plan) {
  ops::sum_rows(run, y, x, plan.bounds, plan.row);
}

void combine_acc(Run& run, Tensor y, Tensor x, const RoutingPlan& plan) {
  ops::sum_rows_acc(run, y, x, plan.bounds, plan.row);
}

}  // namespace moe
