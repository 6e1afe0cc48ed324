// Numbers of vectors without gaps, some at a time, as they lie in memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

// Both rounded to nearest even, `low` in the lower half: one instruction where to_bf16 takes many.
__device__ inline uint32_t two_bf16(float low, float high) {
#ifdef MOE_CUDA_ON_CPU
  return to_bf16(low).bits | uint32_t{to_bf16(high).bits} << 16;
#else
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#endif
}

// What nobody writes meanwhile: such loads may be moved before any store, but not before the wait
// for other kernels, as __ldg may.
__device__ inline uint4 load_unchanging(const uint4* from) {
#ifdef MOE_CUDA_ON_CPU
  return *from;
#else
  uint4 x;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
#endif
}
__device__ inline uint2 load_unchanging(const uint2* from) {
#ifdef MOE_CUDA_ON_CPU
  return *from;
#else
  uint2 x;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
  return x;
#endif
}

// kNumbers of them, moved in pieces of 16 or 8 bytes. Where threads side by side have units of 16
// bytes, a warp writes whole lines at once; units of two pieces make it write twice half of each.
template <class T, int kNumbers>
struct Unit {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16>);
  static constexpr int kBytes = kNumbers * static_cast<int>(sizeof(T));
  using Piece = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  static constexpr int kPieces = kBytes / static_cast<int>(sizeof(Piece));
  static_assert(kPieces * static_cast<int>(sizeof(Piece)) == kBytes);
  union {
    Piece pieces[kPieces];
    uint32_t words[kBytes / 4];
  };

  __device__ Unit() {}
  // Named loads and stores: a plain copy of a piece may be made word by word.
  __device__ void load(const T* from) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) pieces[p] = __ldca(reinterpret_cast<const Piece*>(from) + p);
  }
  __device__ void store(T* to) const {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) __stwb(reinterpret_cast<Piece*>(to) + p, pieces[p]);
  }
  __device__ void load_fixed(const T* from) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
      pieces[p] = load_unchanging(reinterpret_cast<const Piece*>(from) + p);
  }

  __device__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) return __uint_as_float(words[i]);
    else return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
  }
  __device__ void set_all(const float* x) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) words[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kNumbers; i += 2) words[i / 2] = two_bf16(x[i], x[i + 1]);
    }
  }
};

}  // namespace moe::ops::cuda
