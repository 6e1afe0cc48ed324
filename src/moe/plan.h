// What obeys a routing plan (ops/routing.h): what a router decided, as a value. Dispatch, the expert bank and combine know nothing else about routing.
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"
#include "ops/routing.h"

namespace moe {

using ops::RoutingPlan;

// What an expert bank sees. Rows of tokens on this machine are not copied: the products pick them from the tokens.
struct Rows {
  ops::Picked x;                     // [R,D] A
  Tensor weight;                     // [R] f32; absent = 1
  std::span<const int64_t> offsets;  // [E+1]
};

// All of x as the rows of a bank of one expert: a view.
Rows whole(Arena&, Tensor x, Tensor weight = {});

// x's rows where their experts expect them: a view of x and of the plan.  x [N,D] A
Rows dispatch(const RoutingPlan&, Tensor x);
// y[n] = sum over n's rows, in choice order, in f32; 0 for a token without rows.  y [N,D] f32; rows [R,D] f32 or A
void combine(Run&, Tensor y, const RoutingPlan&, Tensor rows);
void combine_acc(Run&, Tensor y, const RoutingPlan&, Tensor rows);  // the same added to y

}  // namespace moe
