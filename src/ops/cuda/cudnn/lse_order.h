// The order of attention's logarithms of sums: rows, as the engine keeps them, and heads, as cuDNN
// does. Apart from cudnn_attention.cpp because nvcc does not take fmt 9 as C++20, and so no source
// with kernels includes core/error.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moe::ops::cuda {

// by_rows [S,T,H] and by_heads [S,H,T], in device memory; written is the first.
cudaError_t lse_by_heads(cudaStream_t stream, float* by_heads, const float* by_rows,
                         int64_t sequences, int64_t length, int64_t heads);
cudaError_t lse_by_rows(cudaStream_t stream, float* by_rows, const float* by_heads,
                        int64_t sequences, int64_t length, int64_t heads);

}  // namespace moe::ops::cuda
