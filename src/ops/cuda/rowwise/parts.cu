// Sums that blocks of rows made by themselves become one.
#include "ops/cuda/rowwise/row.h"

namespace moe::ops::cuda {
namespace {

constexpr int kSide = 32;

// A block takes kSide columns; its row of threads t the strips t, t + kSide, ...; the kSide sums of
// a column are then added in order.
__global__ void sum_parts(float* grad, const float* parts, int64_t strips, int64_t cols,
                          bool write) {
  begin_in_turn();
  __shared__ float sums[kSide][kSide + 1];
  const int64_t c = int64_t{blockIdx.x} * kSide + threadIdx.x, group = blockIdx.y;
  float sum = 0;
  if (c < cols) {
    const float* first = parts + group * strips * cols + c;
#pragma unroll 4
    for (int64_t s = threadIdx.y; s < strips; s += kSide) sum += first[s * cols];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= cols) return;
  for (int64_t t = 1; t < kSide && t < strips; ++t) sum += sums[t][threadIdx.x];
  float* to = grad + group * cols + c;
  *to = write ? sum : *to + sum;
}

}  // namespace

void add_parts(Run& run, float* grad, const float* parts, int64_t groups, int64_t strips,
               int64_t cols, bool write) {
  // no more rows of threads than there are strips
  const unsigned side = strips < kSide ? static_cast<unsigned>(strips) : unsigned{kSide};
  launch(run, sum_parts, dim3(blocks_for(cols, kSide), static_cast<unsigned>(groups)),
         dim3(kSide, side), 0, grad, parts, strips, cols, write);
}

}  // namespace moe::ops::cuda
