// Products of few rows, which take as long as their weights take to be read.
#pragma once

#include "ops/cuda/gemm/tile_product.h"

namespace moe::ops::cuda {

// Rows that these products are for: of one matrix, and of a bank.
constexpr int64_t kFewDense = 4, kFewGrouped = 32;

// y[r,o] = (y[r,o] +) sum_i x[row[r],i] w[e(r)][o,i]; without a list row[r] = r. x and w of one
// dtype. False where rows are many, or lie so that steps do not fit them, and nothing was done.
bool few_rows_product(Run&, Tensor y, const GatheredRows& x, Tensor w, const Groups&, bool add);

}  // namespace moe::ops::cuda
