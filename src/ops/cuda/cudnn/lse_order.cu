#include "ops/cuda/cudnn/lse_order.h"

namespace moe::ops::cuda {
namespace {

// x [S,A,B] -> y [S,B,A], a thread for a number of y. There is so little of it, one number for a
// head's row, that reading out of order costs nothing worth a tile in shared memory.
__global__ void transpose(float* y, const float* x, int64_t count, int64_t a, int64_t b) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const int64_t in_a = i % a, in_b = i / a % b, s = i / (a * b);
  y[i] = x[(s * a + in_a) * b + in_b];
}

cudaError_t launch(cudaStream_t stream, float* y, const float* x, int64_t s, int64_t a, int64_t b) {
  constexpr int kThreads = 256;
  const int64_t count = s * a * b;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  transpose<<<blocks, kThreads, 0, stream>>>(y, x, count, a, b);
  return cudaGetLastError();
}

}  // namespace

cudaError_t lse_by_heads(cudaStream_t stream, float* by_heads, const float* by_rows,
                         int64_t sequences, int64_t length, int64_t heads) {
  return launch(stream, by_heads, by_rows, sequences, length, heads);
}

cudaError_t lse_by_rows(cudaStream_t stream, float* by_rows, const float* by_heads,
                        int64_t sequences, int64_t length, int64_t heads) {
  return launch(stream, by_rows, by_heads, sequences, heads, length);
}

}  // namespace moe::ops::cuda
