// Products in f32 on AVX2, where AVX-512 is not: oneDNN 2 has no kernel for packed weights there,
// so that it rearranges them in every call, and neither 2 nor 3 reads weights of bf16 beside f32. A
// sum is one chain in the order of k, whatever rows stand beside it: the law of rows holds to the
// bit.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm/primitives.h"
#include "ops/cpu/gemm/row_product.h"

namespace moe::ops {

bool has_avx2_products();

// Columns of 16 one after the other. Weights of bf16 lie as pairs of k and are widened when they
// are read.
PackLayout avx2_layout(int64_t inner, int64_t cols, DType dtype);

// out [rows, cols] f32 = or, if shape.add, += in [rows, inner] f32 times w in `layout`.
void multiply_avx2(const ProductShape& shape, const PackLayout& layout, float* out, const float* in,
                   const void* w);

// run_rows() (row_product.h) where has_avx2_products(), with the bits of multiply_avx2.
void run_rows_avx2(const RowProduct& product, int64_t begin, int64_t end);

}  // namespace moe::ops
