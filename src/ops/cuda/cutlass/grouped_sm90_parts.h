// What stands between the entry points of the grouped products (grouped_sm90.cpp), the small
// kernels before them (grouped_sm90_tables.cu) and the products' own (grouped_sm90_forward.cu,
// _dx.cu, _dw.cu), which are apart because each takes a minute to compile. The entry points are no
// CUDA source since nvcc 13 does not get through fmt 9 in C++20, which core/error.h needs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace moe::ops::cuda::sm90 {

// One product a group, d [M, N] = a [M, K] b [K, N]: all in device memory, written there by the
// device. d is row-major; of which dimension of a and b the distance is depends on the kernel.
struct Tables {
  int32_t* shapes;           // [E, 3]: M, N, K
  void **a, **b, **d;        // [E]
  int64_t *lda, *ldb, *ldd;  // [E], in numbers
  void* scratch;             // the kernel's own
};

// A matrix of group e begins at base + e * by_group + offsets[e] * by_row, in bytes.
struct Operand {
  const void* base;
  int64_t by_group, by_row;
  int64_t distance;  // in numbers
};

constexpr int32_t kRows = -1;  // as M or K: the number of the group's rows

struct Setup {
  const int64_t* offsets;  // [E + 1], in device memory
  int groups;
  int32_t m, n, k;
  Operand a, b, d;
};

// A group without rows gets M = 0, so that no product touches it.
void fill_tables(cudaStream_t stream, const Setup& setup, const Tables& tables);
// dw [E, size] of groups without rows.
void zero_empty(cudaStream_t stream, float* dw, int64_t size, const int64_t* offsets, int groups);

struct Launch {
  cudaStream_t stream;
  int groups, sms;
  bool accumulate;
  Tables tables;
};

void launch_forward(const Launch& launch, bool f32);
void launch_dx(const Launch& launch, bool f32);
void launch_dw(const Launch& launch);

// The greatest that one of them needs.
size_t forward_scratch(int groups, int sms);
size_t dx_scratch(int groups, int sms);
size_t dw_scratch(int groups, int sms);

[[noreturn]] void fail_launch(const char* why);

}  // namespace moe::ops::cuda::sm90
