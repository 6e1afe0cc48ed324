// What obeys a routing plan (ops/routing.h): what a router decided, as a value. Dispatch, the
// expert bank and combine know nothing else about routing.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"
#include "ops/ops.h"
#include "ops/routing.h"

namespace moe {

using ops::RoutingPlan;

// What an expert bank sees. Rows of tokens on this machine are not copied: the products gather them
// from the tokens. Rows that came from other processes (moe/exchange.h) lie as they came, and are
// gathered from there.
struct Rows {
  ops::GatheredRows x;               // [R,D] A
  Tensor weight;                     // [R] f32; absent = 1
  std::span<const int64_t> offsets;  // [E+1], of the experts here
  comm::Group group = {};            // whose processes hold the experts
  // [pieces * P + 1] what comes of process p in the q-th piece is x.x[came[q * P + p]] to the next
  // of them, sorted by expert; empty where nothing comes.
  std::span<const int64_t> came = {};
  bool same_everywhere = false;  // all processes have the same tokens; `came` is empty then
};

// All of x as the rows of a bank of one expert: a view.
Rows whole(Arena&, Tensor x, Tensor weight = {});
// The rows of a plan whose experts are all here: a view.  x [N,D] A
Rows dispatch(Tensor x, const RoutingPlan&);

// y[n] = sum over n's rows, in choice order, in f32; 0 for a token without rows.  y [N,D] f32; x
// [R,D] f32 or A, the plan's rows
void combine(Run&, Tensor y, Tensor x, const RoutingPlan&);
// the same added to y
void combine_acc(Run&, Tensor y, Tensor x, const RoutingPlan&);

}  // namespace moe
