// A build without cuDNN: ops/cuda/attention has kernels for every shape, and nothing below is
// called.
#include <cstdlib>

#include "ops/cuda/cudnn/cudnn_attention.h"

namespace moe::ops::cuda {

bool flash_fits(const FlashShape&) { return false; }
size_t flash_forward_workspace(const FlashShape&) { std::abort(); }
void flash_forward(cudaStream_t, const FlashShape&, void*, float*, const void*, const void*,
                   const void*, void*) {
  std::abort();
}
size_t flash_backward_workspace(const FlashShape&) { std::abort(); }
void flash_backward(cudaStream_t, const FlashShape&, void*, void*, void*, const void*, const void*,
                    const void*, const void*, const void*, const float*, void*) {
  std::abort();
}

}  // namespace moe::ops::cuda
