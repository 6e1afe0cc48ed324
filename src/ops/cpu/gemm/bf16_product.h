// Products of some rows of bf16 with packed weights in vectors (VDPBF16PS), with oneDNN's bits.
// Experts of a prompt have so few rows that most of the time their weights are waited for: here
// what is multiplied next is fetched meanwhile, which oneDNN leaves to the processor.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm/primitives.h"

namespace moe::ops {

// Rows up to which this is the faster way.
constexpr int64_t kMostFetchedRows = 128;

// The stretch (row_product.h) by which a product of this shape, whatever its rows, has the bits of
// oneDNN's: ProductShape::stretch for up to kMostFetchedRows. 0: oneDNN multiplies it.
int64_t fetched_stretch(const ProductShape& shape);

// out [rows, cols] f32 or bf16 = in [rows, inner] bf16 times w in `layout`; shape.stretch > 0.
void multiply_bf16(const ProductShape& shape, const PackLayout& layout, void* out, const void* in,
                   const void* w);

}  // namespace moe::ops
