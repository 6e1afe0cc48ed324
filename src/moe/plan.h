// The routing plan: what a router decided, as a value. Dispatch, the expert bank and combine obey it and know nothing else about routing.
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"
#include "tensor/run.h"

namespace moe {

// R kept (token, expert) pairs, called rows, sorted by expert, then token, then choice rank. All memory lies in run.saved.
struct RoutingPlan {
  std::span<const int32_t> token;    // [R] whose copy a row is
  std::span<const int64_t> offsets;  // [E+1] rows of expert e: [offsets[e], offsets[e+1])
  std::span<const int32_t> bounds;   // [N+1] token n's rows are row[bounds[n]..bounds[n+1]), in choice order
  std::span<const int32_t> row;      // [R]
  std::span<const int32_t> pair;     // [R] the row's place in the router's [N,K] matrices: n * K + choice rank
  Tensor weight;                     // [R] f32 combine weights

  int64_t rows() const { return static_cast<int64_t>(token.size()); }
  int64_t tokens() const { return static_cast<int64_t>(bounds.size()) - 1; }
};

// Keeps the pairs with kept != 0.  choice, kept [N,K] i32; w [N,K] f32
RoutingPlan make_plan(Run&, Tensor choice, Tensor kept, Tensor w, int64_t experts);

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
