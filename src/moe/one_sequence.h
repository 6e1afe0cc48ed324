// One sequence of tokens as a batch: a window of a text, a prompt.
#pragma once

#include <numeric>
#include <vector>

#include "moe/pass.h"

namespace moe {

// Positions and bounds, made once for all sequences of `tokens` tokens.
class OneSequence {
 public:
  explicit OneSequence(int64_t tokens)
      : positions_(static_cast<size_t>(tokens)), bounds_{0, tokens} {
    std::iota(positions_.begin(), positions_.end(), 0);
  }
  // ids [N] of N = `tokens`. A view, of this too.
  Batch of(std::span<const int32_t> ids) const { return {ids, positions_, bounds_}; }

 private:
  std::vector<int32_t> positions_;  // [N]
  std::vector<int64_t> bounds_;     // [2]
};

}  // namespace moe
