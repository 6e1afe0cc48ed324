// CUDA's kernels on the CPU, thread by thread, for tests where there is no GPU: the part of the
// runtime and of the language that ops/cuda uses. A block's threads are fibers that run until they
// meet a barrier; warps exchange values through memory. "Device memory" can be read and written
// only by kernels and copies: a host that reaches into it dies as it would on a GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#define MOE_CUDA_ON_CPU 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
// NOLINTBEGIN: CUDA's own names

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

extern dim3 gridDim, blockDim;
extern uint3 blockIdx, threadIdx;

namespace cuda_on_cpu {
void barrier_of_block();
// What lane `from` of the calling thread's warp gives; every lane of the warp calls it.
void exchange(void* out, const void* in, size_t bytes, unsigned from);
// What each lane gives, for all of them.  out [32]
void all_lanes(void* out, const void* in, size_t bytes);
unsigned ballot(bool vote);
void* dynamic_shared();
void run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& thread);
}  // namespace cuda_on_cpu

inline void __syncthreads() { cuda_on_cpu::barrier_of_block(); }
inline unsigned __ballot_sync(unsigned, bool vote) { return cuda_on_cpu::ballot(vote); }
inline void __syncwarp(unsigned = ~0u) { cuda_on_cpu::ballot(true); }
inline bool __any_sync(unsigned, bool vote) { return cuda_on_cpu::ballot(vote) != 0; }
template <class T>
T __shfl_sync(unsigned, T value, int lane, int = 32) {
  T out;
  cuda_on_cpu::exchange(&out, &value, sizeof(T), static_cast<unsigned>(lane) & 31);
  return out;
}
inline unsigned lane_on_cpu() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int = 32) {
  return __shfl_sync(mask, value, static_cast<int>(lane_on_cpu() ^ static_cast<unsigned>(by)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int = 32) {
  const unsigned lane = lane_on_cpu();
  return __shfl_sync(mask, value, static_cast<int>(lane < by ? lane : lane - by));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int = 32) {
  const unsigned lane = lane_on_cpu();
  return __shfl_sync(mask, value, static_cast<int>(lane + by > 31 ? lane : lane + by));
}
// Of warps whose lanes all run.
template <class T>
unsigned __match_any_sync(unsigned, T value) {
  T all[32];
  cuda_on_cpu::all_lanes(all, &value, sizeof(T));
  unsigned same = 0;
  for (unsigned lane = 0; lane < 32; ++lane) same |= unsigned{all[lane] == value} << lane;
  return same;
}
template <class T>
T __reduce_max_sync(unsigned, T value) {
  T all[32];
  cuda_on_cpu::all_lanes(all, &value, sizeof(T));
  return *std::max_element(all, all + 32);
}
template <class T>
T __reduce_min_sync(unsigned, T value) {
  T all[32];
  cuda_on_cpu::all_lanes(all, &value, sizeof(T));
  return *std::min_element(all, all + 32);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
T atomicAdd(T* at, T by) {
  return std::exchange(*at, static_cast<T>(*at + by));
}
template <class T>
T atomicMin(T* at, T with) {
  return std::exchange(*at, std::min(*at, with));
}
template <class T>
T atomicMax(T* at, T with) {
  return std::exchange(*at, std::max(*at, with));
}
// c + the products of four signed bytes.
inline int __dp4a(int a, int b, int c) {
  for (int shift = 0; shift < 32; shift += 8)
    c += static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
  return c;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (by & 31));
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __uint_as_float(unsigned x) {
  float f;
  std::memcpy(&f, &x, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned x;
  std::memcpy(&x, &f, 4);
  return x;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
void __stwb(T* p, T x) {
  *p = x;
}
template <class T>
void __stcs(T* p, T x) {
  *p = x;
}

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNoDevice = 100 };
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
using cudaStream_t = struct CUstream_st*;
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
};
struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);
cudaError_t cudaMemGetInfo(size_t*, size_t*);
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaFree(void*);
cudaError_t cudaMallocHost(void**, size_t);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t);
cudaError_t cudaGetLastError();
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamCreate(cudaStream_t*);
cudaError_t cudaStreamDestroy(cudaStream_t);
template <class F>
cudaError_t cudaFuncSetAttribute(F*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* how, void (*kernel)(P...), A&&... all) {
  cuda_on_cpu::run(how->gridDim, how->blockDim, how->dynamicSmemBytes,
                   [&] { kernel(static_cast<P>(all)...); });
  return cudaSuccess;
}
// NOLINTEND
