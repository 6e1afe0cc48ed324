// Fills the tables that the kernels of the grouped products read, from the offsets, right before
// them on the same stream; and zeroes the gradients of groups without rows, which they pass over.
#include <algorithm>

#include "ops/cuda/cutlass/grouped_sm90_parts.h"

namespace moe::ops::cuda::sm90 {
namespace {

constexpr int kThreads = 128;
constexpr unsigned kMostBlocksY = 65535;

__device__ void* start_of(const Operand& operand, int64_t e, int64_t row) {
  const char* base = static_cast<const char*>(operand.base);
  return const_cast<char*>(base + e * operand.by_group + row * operand.by_row);
}

__global__ void fill(const Setup s, const Tables t) {
  const int e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= s.groups) return;
  const int64_t row = s.offsets[e];
  const auto rows = static_cast<int32_t>(s.offsets[e + 1] - row);
  // M = 0: no tile, so that a sum over no rows is not stored either.
  t.shapes[3 * e] = s.m == kRows || rows == 0 ? rows : s.m;
  t.shapes[3 * e + 1] = s.n;
  t.shapes[3 * e + 2] = s.k == kRows ? rows : s.k;
  t.a[e] = start_of(s.a, e, row);
  t.b[e] = start_of(s.b, e, row);
  t.d[e] = start_of(s.d, e, row);
  t.lda[e] = s.a.distance;
  t.ldb[e] = s.b.distance;
  t.ldd[e] = s.d.distance;
}

// dw [E, O, I] of groups without rows, in quads of f32.
__global__ void zero(float4* dw, int64_t quads, const int64_t* offsets, int groups) {
  for (int e = static_cast<int>(blockIdx.y); e < groups; e += static_cast<int>(gridDim.y)) {
    if (offsets[e] != offsets[e + 1]) continue;
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < quads;
         i += step)
      dw[e * quads + i] = make_float4(0, 0, 0, 0);
  }
}

void check(cudaError_t error) {
  if (error != cudaSuccess) fail_launch(cudaGetErrorString(error));
}

}  // namespace

void fill_tables(cudaStream_t stream, const Setup& setup, const Tables& tables) {
  fill<<<(setup.groups + kThreads - 1) / kThreads, kThreads, 0, stream>>>(setup, tables);
  check(cudaGetLastError());
}

void zero_empty(cudaStream_t stream, float* dw, int64_t size, const int64_t* offsets, int groups) {
  const dim3 blocks(8, std::min(static_cast<unsigned>(groups), kMostBlocksY));
  zero<<<blocks, 2 * kThreads, 0, stream>>>(reinterpret_cast<float4*>(dw), size / 4, offsets,
                                            groups);
  check(cudaGetLastError());
}

}  // namespace moe::ops::cuda::sm90
