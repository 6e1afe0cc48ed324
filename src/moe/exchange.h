// Rows between tokens and experts that lie on the processes of a group: the p-th share of the
// experts (core/threads.h: partition) on process p. A plan speaks of all experts and of this
// process's tokens; Rows of the experts here and of everybody's tokens. All of this is collective.
//
// Rows travel in pieces, each of some of every process's experts: while experts work on one, the
// next is on its way to them and the one before on its way back. An expert's rows are all in one
// piece, so that its sums are those of a process that has all experts.
//
// Where all processes have the same tokens, and so the same plan, rows are those of the experts
// here, and only what the experts make of them is sent: to all.
#pragma once

#include <functional>

#include "core/threads.h"
#include "moe/plan.h"

namespace moe {

// Into how many pieces the rows of a layer are cut.
int exchange_pieces(int64_t experts, int processes);

// What a process does while its rows are on the way: no exchange of its own.
using Meanwhile = std::function<void()>;

// The rows of the experts here, in run.saved where they come from processes: how many there are of
// each expert and what they weigh. x itself comes with visit_experts. Of a process alone a view of
// x and of the plan.  x [N,D] A
Rows dispatch(Run&, Tensor x, const RoutingPlan&, const comm::Group&, bool same_everywhere = false);

// Rows that are there.
struct Piece {
  Rows rows;            // those of `rows` that are; the other experts have none
  ops::GatheredRows x;  // what their tokens sent
  Span part;            // of all rows
};
using AtExperts = std::function<void(const Piece&)>;

// Takes x of every token to its experts, calls `work` there for each piece, and brings back what it
// made: the plan's rows, `made` itself or in run.scratch. `meanwhile` is called once, before `work`
// where there is no way.
//   made [R,D] f32 or A, what `work` writes, in the order of rows; x [N,D] A; there [R,D] A, where
//   x comes to lie: of the forward that made `rows` rows.x.x, else empty, and it lies in
//   run.scratch
Tensor visit_experts(Run&, Tensor made, Tensor there, Tensor x, const RoutingPlan&, const Rows&,
                     const Meanwhile& meanwhile, const AtExperts& work);

// What there is of each of `rows`, as rows of the plan: `x` itself, or in run.scratch.  x [R]
Tensor return_rows(Run&, Tensor x, const RoutingPlan&, const Rows& rows);

}  // namespace moe
