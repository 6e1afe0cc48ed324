#include "model/chunks.h"

namespace moe {

// In a cache a chunk begins with a block of keys (KvCache refuses others), so that its table is a
// part of the sequence's.
ChunkedKeys::ChunkedKeys(const ops::KvView& whole, std::span<const int32_t> positions,
                         int64_t chunk)
    : kv_(whole), seen_from_(positions) {
  if (chunk == 0 || whole.bounds.empty()) return;
  const auto position = [&](int64_t n) { return int64_t{positions[static_cast<size_t>(n)]}; };
  bounds_.push_back(whole.bounds.front());
  for (int64_t s = 0; s < whole.sequences(); ++s) {
    const int64_t end = whole.bounds[static_cast<size_t>(s) + 1];
    for (int64_t n = bounds_.back(); n < end; n = bounds_.back()) {
      const int64_t first = position(n) / chunk * chunk;
      int64_t then = n;
      for (; then < end && position(then) / chunk * chunk == first; ++then)
        positions_.push_back(static_cast<int32_t>(position(then) - first));
      bounds_.push_back(then);
      if (!whole.first_row.empty()) {
        first_row_.push_back(whole.first_row[static_cast<size_t>(s)] + first);
        continue;
      }
      const std::span<const int32_t> table = whole.table(s);
      slots_.push_back(static_cast<int32_t>(tables_.size()));
      tables_.emplace_back(table.begin() + first / ops::kKeyBlock,
                           table.begin() + position(then - 1) / ops::kKeyBlock + 1);
    }
  }
  kv_.bounds = bounds_;
  kv_.first_row = first_row_;
  kv_.slots = slots_;
  kv_.tables = tables_;
  seen_from_ = positions_;
}

}  // namespace moe
