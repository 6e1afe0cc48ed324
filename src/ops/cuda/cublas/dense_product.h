// Products with one matrix by cuBLAS.
#pragma once

#include "ops/cuda/gemm/tile_product.h"

namespace moe::ops::cuda {

// As tile_product() without groups; false where cuBLAS has nothing for it, and nothing was done. a
// and b of one dtype, c f32 or theirs. f32 is multiplied in f32, not in TF32. With `shares` each
// sum is cut into as many of one length, which have matrices of their own in c: forward and dw.
bool dense_product(Run&, Form, Tensor c, Tensor a, Tensor b, bool add, int64_t shares = 1);

}  // namespace moe::ops::cuda
