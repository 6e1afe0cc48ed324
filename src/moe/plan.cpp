#include "moe/plan.h"

#include <array>

namespace moe {

Rows whole(Arena& arena, Tensor x, Tensor weight) {
  const std::array<int64_t, 2> all = {0, x.rows()};
  return {x, weight, arena.put(std::span<const int64_t>(all))};
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
