// The tokens a routing decision or a balance loss looks at together: the whole micro-batch, one sequence, or a group of S tokens that follow each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace moe {

struct Scope {
  enum class Kind { micro_batch, sequence, group };
  Kind kind = Kind::micro_batch;
  int64_t group = 0;  // tokens of a group; only for Kind::group. Groups start anew at the micro-batch's first token; the last one may be shorter
};

// Where the scopes begin, and the end: scope i is the tokens [out[i], out[i+1]). Sequences are those of `bounds` [S+1]; empty bounds count as one sequence.
std::vector<int64_t> scope_bounds(const Scope&, std::span<const int64_t> bounds, int64_t tokens);

// What the router is told about its N tokens beside their hidden states. Views; the caller owns the memory.
struct RouterInput {
  std::span<const int32_t> ids;          // [N] token ids; only hash routing reads them
  std::span<const int64_t> bounds;       // [S+1] rows of sequence s; empty: one sequence
  std::span<const int64_t> step_counts;  // [E] counted pairs that other micro-batches of this optimizer step have (BalanceLoss::Shares); empty: none known
  Tensor recorded = {};                  // [N,K] i32 choices to take instead of the router's own (moe/replay.h); absent: the router chooses
  int64_t layer = -1;                    // only named where a recorded choice is refused
};

}  // namespace moe
