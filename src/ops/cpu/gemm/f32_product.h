// Products in f32 of this engine's own, where oneDNN has none over packed weights: it reads no
// weights of 16 bits beside f32, and version 2 packs none on AVX2, so that it rearranges them in
// every call. A sum is one chain in the order of k, whatever rows stand beside it: the law of rows
// holds to the bit.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm/primitives.h"
#include "ops/cpu/gemm/row_product.h"

namespace moe::ops {

// Whether rows of f32 meet weights kept as `weights` in these products: f16 wherever there is AVX2,
// bf16 where the processor multiplies none itself, f32 where there is no AVX-512.
bool has_f32_products(DType weights);

// Columns of blocks one after the other. Weights of bf16 lie as pairs of k.
PackLayout f32_layout(int64_t inner, int64_t cols, DType weights);

// out [rows, cols] f32 = or, if shape.add, += in [rows, inner] f32 times w in `layout`.
void multiply_f32(const ProductShape& shape, const PackLayout& layout, float* out, const float* in,
                  const void* w);

// run_rows() (row_product.h) for rows of f32, also over oneDNN's packed f32.
void run_rows_f32(const RowProduct& product, int64_t begin, int64_t end);

}  // namespace moe::ops
