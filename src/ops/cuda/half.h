// IEEE halves in kernels: numbers of a cache or of a weight that is kept so.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace moe::ops::cuda {

using moe::to_f32;

struct f16 {
  uint16_t bits;
};

// Exact, as f16_to_f32 (tensor/dtype.h): the exponent is moved by a product, which also makes
// normal numbers of those below the range of a half.
__device__ inline float to_f32(f16 x) {
#ifdef MOE_CUDA_ON_CPU
  const uint32_t magnitude = uint32_t{x.bits & 0x7FFFu} << 13,
                 sign = uint32_t{x.bits & 0x8000u} << 16;
  if (magnitude >= 0x0F800000u) return __uint_as_float(sign | 0x7F800000u | magnitude);
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude) * 0x1p112f));
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#endif
}
__device__ inline void store(f16* p, float x) { p->bits = f32_to_f16(x); }

}  // namespace moe::ops::cuda
