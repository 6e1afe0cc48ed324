// Causal attention by cuDNN's fused kernels: grouped queries, an optional window, bf16 in and out
// and f32 inside. What they cannot do (sinks, packed sequences of several lengths, caches) is not
// here: flash_fits() says which shapes are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace moe::ops::cuda {

// S sequences of one length T lie end to end, N = S T rows in all. Query t of a sequence sees its
// keys 0 to t; with a window the last `window` of them, its own included.
struct FlashShape {
  int64_t sequences;               // S
  int64_t length;                  // T
  int64_t heads, kv_heads;         // H, G
  int64_t key_width, value_width;  // C, Cv
  int64_t window;                  // 0: none
  float scale;                     // of the scores
};

// Whether cuDNN takes the shape, forward and backward, on the current device.
bool flash_fits(const FlashShape& shape);

// All pointers are into memory of the current device: dense rows of bf16 that begin at multiples of
// 16 bytes, and lse in f32. A workspace begins at a multiple of 256 bytes and may be used again as
// soon as what is on the stream is done with it. The first call with a shape, of either size or
// operation, builds cuDNN's plan for it. That takes some tenths of a second, of a forward some
// milliseconds where only S and T are new.
//
//   o [N,H*Cv] = softmax(scale q k^T) v;  lse [N,H] = ln sum exp(scale q k^T)
//   q [N,H*C], k [N,G*C], v [N,G*Cv]
size_t flash_forward_workspace(const FlashShape& shape);
void flash_forward(cudaStream_t stream, const FlashShape& shape, void* o, float* lse, const void* q,
                   const void* k, const void* v, void* workspace);

// dq [N,H*C], dk [N,G*C] and dv [N,G*Cv] are written; o and lse are what the forward gave. The same
// arguments give the same bits.
size_t flash_backward_workspace(const FlashShape& shape);
void flash_backward(cudaStream_t stream, const FlashShape& shape, void* dq, void* dk, void* dv,
                    const void* do_, const void* q, const void* k, const void* v, const void* o,
                    const float* lse, void* workspace);

}  // namespace moe::ops::cuda
