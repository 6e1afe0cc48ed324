// Products of f32 on the tensor cores: a number of f32 is the sum of three of bf16.
#pragma once

#include "ops/cuda/gemm/tile_product.h"

namespace moe::ops::cuda {

// Whether split_product() takes a product of `rows` rows with one matrix, and is worth its copies:
// forward and dw of one f32 operand, the narrow one, and one of bf16, dx of two f32; c f32. a and b
// as tile_product() takes them, but for the number of rows, which a list may give.
bool split_fits(Form, const Tensor& c, const Tensor& a, const Tensor& b, int64_t rows);

// c = or += the product, as exact as one in f32.
void split_product(Run&, Form, Tensor c, Tensor a, Tensor b, bool add);

}  // namespace moe::ops::cuda
