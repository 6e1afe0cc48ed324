// Copies from memory to shared memory that pass registers by and go on beside arithmetic (PTX ISA,
// cp.async; from 8.0 on).
#pragma once

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

#ifdef MOE_CUDA_ON_CPU

// 16 bytes to shared memory, zeros where there are none.
__device__ inline void copy_piece(char* to, const void* from, bool any) {
  if (any) std::memcpy(to, from, 16);
  else std::memset(to, 0, 16);
}
__device__ inline void close_copies() {}
template <int kOpen>
__device__ inline void await_copies() {}

#else

// 16 bytes to shared memory, zeros where there are none.
__device__ inline void copy_piece(char* to, const void* from, bool any) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(any ? 16 : 0)
               : "memory");
}
// The copies so far are a group; waits until at most kOpen groups are on their way.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

#endif

}  // namespace moe::ops::cuda
