// The tokens a routing decision or a balance loss looks at together: the whole micro-batch, one
// sequence, or a group of S tokens that follow each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace moe {

struct Scope {
  enum class Kind { micro_batch, sequence, group };
  Kind kind = Kind::micro_batch;
  int64_t group = 0;  // tokens of a group; only for Kind::group. Groups start anew at the
                      // micro-batch's first token; the last one may be shorter
};

// Where the scopes begin, and the end: scope i is the tokens [out[i], out[i+1]). Sequences are
// those of `bounds` [S+1]; empty bounds count as one sequence.
std::vector<int64_t> scope_bounds(const Scope&, std::span<const int64_t> bounds, int64_t tokens);

}  // namespace moe
