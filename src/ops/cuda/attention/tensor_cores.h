// Products of small matrices of bf16 on tensor cores, and what brings them there (PTX ISA, mma,
// ldmatrix and cp.async; from 8.0 on). A warp holds a matrix in fragments, with g = lane / 4 and
// t = lane % 4:
//   a [16,16]: a0 (g, 2t), a1 (g + 8, 2t), a2 (g, 2t + 8), a3 (g + 8, 2t + 8), two numbers each;
//   b [16,8]:  b0 (2t, g), b1 (2t + 8, g), two numbers of a column each;
//   d [16,8]:  d0, d1 (g, 2t), d2, d3 (g + 8, 2t), f32.
#pragma once

#include "ops/cuda/copies.h"

namespace moe::ops::cuda {

// Blocks in shared memory are rows of 64 bf16. Pieces of 8 numbers stand in another order in each
// of eight rows, so that the same piece of all eight lies in different banks.
constexpr int kLine = 128;  // bytes of a row
__device__ inline int place_of(int row, int piece) {
  return row * kLine + ((piece ^ (row & 7)) << 4);
}

#ifdef MOE_CUDA_ON_CPU

// d += a b
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  struct Fragment {
    uint32_t a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
  cuda_on_cpu::all_lanes(all, &mine, sizeof mine);
  const auto half = [](uint32_t two, int i) {
    return __uint_as_float((two >> 16 * i & 0xFFFFu) << 16);
  };
  const int lane = static_cast<int>(lane_on_cpu());
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k)
      d[i] += half(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2) *
              half(all[col * 4 + k % 8 / 2].b[k / 8], k % 2);
  }
}
// Four matrices [8,8] whose rows lie where the lanes say, 8i to 8i + 7 those of matrix i.
template <bool kTurned>
__device__ inline void load_matrices(uint32_t (&to)[4], const char* row) {
  const char* all[32];
  cuda_on_cpu::all_lanes(all, &row, sizeof row);
  const int g = static_cast<int>(lane_on_cpu()) / 4, t = static_cast<int>(lane_on_cpu()) % 4;
  const auto number = [&](int i, int r, int c) {
    return uint32_t{reinterpret_cast<const uint16_t*>(all[8 * i + r])[c]};
  };
  for (int i = 0; i < 4; ++i)
    to[i] = kTurned ? number(i, 2 * t, g) | number(i, 2 * t + 1, g) << 16
                    : number(i, g, 2 * t) | number(i, g, 2 * t + 1) << 16;
}

#else

__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <bool kTurned>
__device__ inline void load_matrices(uint32_t (&to)[4], const char* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTurned)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
#endif

// a: rows [row, row + 16) by numbers [16 k, 16 k + 16) of a block.
__device__ inline void load_a(uint32_t (&a)[4], const char* block, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices<false>(a, block + place_of(row + lane % 16, 2 * k + lane / 16));
}
// Two b side by side, {b0, b1} each: of a block whose rows are their columns, [col, col + 16);
__device__ inline void load_b_of_cols(uint32_t (&b)[4], const char* block, int col, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices<false>(b, block + place_of(col + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
// or of one whose rows are their rows, [16 k, 16 k + 16).
__device__ inline void load_b_of_rows(uint32_t (&b)[4], const char* block, int col, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices<true>(b, block + place_of(16 * k + lane % 16, col / 8 + lane / 16));
}

}  // namespace moe::ops::cuda
