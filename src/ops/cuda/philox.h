// Draws of core/rng.h in kernels: the same words of the same key and counter.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/rng.h"

namespace moe::ops::cuda {

struct Words {
  uint32_t x[4];
};

// philox() of core/rng.h
__device__ inline Words philox_words(RngKey key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key.value), k1 = static_cast<uint32_t>(key.value >> 32);
  Words c{{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.x[0], p1 = uint64_t{0xCD9E8D57u} * c.x[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.x[1] ^ k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.x[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace moe::ops::cuda
