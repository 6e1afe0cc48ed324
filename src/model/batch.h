// The input of a forward: N tokens of any number of sequences laid end to end. A training batch, a prompt, a decode step and a server's mixed batch are all
// this.
#pragma once

#include <cstdint>
#include <span>

namespace moe {

// Views; the caller owns the memory.
struct Batch {
  std::span<const int32_t> ids;         // [N]
  std::span<const int32_t> positions;   // [N] in its sequence, from 0
  std::span<const int64_t> bounds;      // [S+1] rows of sequence s: [bounds[s], bounds[s+1])
  std::span<const int32_t> slots = {};  // [S] where the cache keeps sequence s (KvCache::open); none without a cache

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(bounds.size()) - 1; }
};

}  // namespace moe
