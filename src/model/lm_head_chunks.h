// How the head cuts its logits, which are large: who counts memory needs to know.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moe {

constexpr int64_t kKeptLogitBytes =
    int64_t{64}
    << 20;  // a loss keeps its logits [N,V] for backward up to this; larger ones are made again
constexpr int64_t kLogitChunkBytes = int64_t{16} << 20;
// of a quantised head, while its numbers are wide for a product
constexpr int64_t kHeadSliceBytes = int64_t{8} << 20;

// Rows of logits that are made at once: a multiple of 16 so that every chunk but the last uses the
// same products.
inline int64_t logit_chunk_rows(int64_t vocab, int64_t bytes = kLogitChunkBytes) {
  return std::max<int64_t>(16, bytes / (vocab * 4) / 16 * 16);
}
// On a device, which wants large products and has no cache that they should fit: logits are kept up
// to a share of what is free, and else made again in chunks of that.
constexpr int64_t kDeviceLogitBytes = int64_t{512} << 20;
constexpr int64_t kDeviceKeptShare = 8;

// Columns of logits that are made at once of all rows, where the matrix is cut and not the rows: a
// multiple of 64, the columns that a product takes together. row_bytes: of the matrix when wide.
inline int64_t logit_chunk_columns(int64_t rows, int64_t row_bytes) {
  const int64_t most = std::min(kLogitChunkBytes / (rows * 4), kHeadSliceBytes / row_bytes);
  return std::max<int64_t>(64, most / 64 * 64);
}

}  // namespace moe
