// A build without CUTLASS: ops/cuda/gemm/tile_product.cu multiplies.
#include "ops/cuda/gemm/grouped_sm90.h"

namespace moe::ops::cuda {

bool grouped_fits(int64_t, int64_t) { return false; }
size_t grouped_workspace(const Grouped&) { return 0; }
void grouped_forward(cudaStream_t, const Grouped&, void*, bool, int64_t, const void*, int64_t,
                     const void*, bool, void*) {}
void grouped_dx(cudaStream_t, const Grouped&, void*, bool, int64_t, const void*, int64_t,
                const void*, bool, void*) {}
void grouped_dw(cudaStream_t, const Grouped&, float*, const void*, int64_t, const void*, int64_t,
                bool, void*) {}

}  // namespace moe::ops::cuda
