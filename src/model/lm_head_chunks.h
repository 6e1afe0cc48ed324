// How the head cuts its logits, which are large: who counts memory needs to know.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moe {

constexpr int64_t kKeptLogitBytes =
    int64_t{64}
    << 20;  // a loss keeps its logits [N,V] for backward up to this; larger ones are made again
constexpr int64_t kLogitChunkBytes = int64_t{16} << 20;

// Rows of logits that are made at once: a multiple of 16 so that every chunk but the last uses the
// same products.
inline int64_t logit_chunk_rows(int64_t vocab) {
  return std::max<int64_t>(16, kLogitChunkBytes / (vocab * 4) / 16 * 16);
}

}  // namespace moe
