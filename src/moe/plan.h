// What obeys a routing plan (ops/routing.h): what a router decided, as a value. Dispatch, the
// expert bank and combine know nothing else about routing.
//
// The experts of a layer may lie on the processes of a group, the p-th share of them
// (core/threads.h: partition) on process p. A plan speaks of all experts and of this process's
// tokens; Rows of the experts here and of everybody's tokens. Dispatch and return_rows go from one
// to the other, and are collective. Where all of them have the same tokens, and so the same plan,
// rows are those of the experts here, and only what the experts make of them is sent: to all.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/group.h"
#include "ops/ops.h"
#include "ops/routing.h"

namespace moe {

using ops::RoutingPlan;

// What an expert bank sees. Rows of tokens on this machine are not copied: the products gather them
// from the tokens. Rows that came from processes lie as they came, and are gathered from there.
struct Rows {
  ops::GatheredRows x;               // [R,D] A
  Tensor weight;                     // [R] f32; absent = 1
  std::span<const int64_t> offsets;  // [E+1], of the experts here
  comm::Group group = {};            // whose processes hold the experts
  // [P+1] what came of process p is x.x[came[p]] to x.x[came[p+1]], sorted by expert; empty where
  // the group is of this process alone.
  std::span<const int64_t> came = {};
  bool same_everywhere = false;  // all processes have the same tokens; `came` is empty then
};

// All of x as the rows of a bank of one expert: a view.
Rows whole(Arena&, Tensor x, Tensor weight = {});

// What a process does while its rows are on the way: no exchange of its own.
using Meanwhile = std::function<void()>;

// x's rows where their experts expect them: of a process alone a view of x and of the plan; else in
// run.saved.  x [N,D] A
Rows dispatch(Run&, Tensor x, const RoutingPlan&, const comm::Group&, bool same_everywhere = false,
              const Meanwhile& = {});
// Likewise what else there is of each token, along the way that `rows` went: a view, or in
// run.scratch.  x [N,D]
ops::GatheredRows dispatch(Run&, Tensor x, const RoutingPlan&, const Rows& rows,
                           const Meanwhile& = {});
// What there is of each of `rows`, as rows of the plan that they were dispatched by: `x` itself, or
// in run.scratch.  x [R,D] or [R]
Tensor return_rows(Run&, Tensor x, const RoutingPlan&, const Rows& rows);
// y[n] = sum over n's rows, in choice order, in f32; 0 for a token without rows.  y [N,D] f32; x
// [R,D] f32 or A, one for each of `rows`
void combine(Run&, Tensor y, Tensor x, const RoutingPlan&, const Rows& rows);
// the same added to y
void combine_acc(Run&, Tensor y, Tensor x, const RoutingPlan&, const Rows& rows);

}  // namespace moe
