// Attention in chunks (Llama 4): a token sees, of its own chunk of so many tokens counted from the
// beginning of its text, itself and those before it. A chunk of a sequence is then a sequence of
// its own whose positions count from 0, so that the kernels know nothing of chunks.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace moe {

// What attention is given in place of a batch's keys and positions. With chunks of 0 tokens, which
// are none, these themselves. They are read as long as it lives.
class ChunkedKeys {
 public:
  ChunkedKeys(const ops::KvView& whole, std::span<const int32_t> positions, int64_t chunk);
  ChunkedKeys(const ChunkedKeys&) = delete;
  ChunkedKeys& operator=(const ChunkedKeys&) = delete;

  const ops::KvView& kv() const { return kv_; }
  std::span<const int32_t> positions() const { return seen_from_; }

 private:
  ops::KvView kv_;
  std::span<const int32_t> seen_from_;  // [N]
  std::vector<int64_t> bounds_, first_row_;
  std::vector<int32_t> positions_, slots_;
  std::vector<std::vector<int32_t>> tables_;
};

}  // namespace moe
