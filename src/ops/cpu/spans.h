// How ops split rows and flat ranges among threads.
#pragma once

#include <algorithm>

#include "core/threads.h"
#include "ops/check.h"
#include "tensor/run.h"

namespace moe::ops {

// Elements below which another thread costs more than it brings.
constexpr int64_t kGrainElements = 16384;

inline int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, cols));
}

// For ops that treat every element alike: calls f(row, col, count) on pieces that together cover
// the matrix once. Tensors without gaps
// (`dense` says that all of them are) count as one long row, cut at whole cache lines, so that a
// single wide row is shared among threads too.
template <class F>
void for_spans(const Run& run, const Tensor& shape, bool dense, F&& f) {
  constexpr int64_t kBlock = 1024;
  if (dense) {
    const int64_t n = shape.numel();
    parallel_for(run.threads, (n + kBlock - 1) / kBlock, kGrainElements / kBlock,
                 [&](int64_t begin, int64_t end, int) {
                   f(int64_t{0}, begin * kBlock, std::min(end * kBlock, n) - begin * kBlock);
                 });
    return;
  }
  parallel_for(run.threads, shape.rows(), row_grain(shape.cols()),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t r = begin; r < end; ++r) f(r, int64_t{0}, shape.cols());
               });
}

}  // namespace moe::ops
