// Products of few rows, which take as long as their weights take to be read.
#pragma once

#include <optional>

#include "ops/cuda/gemm/tile_product.h"

namespace moe::ops::cuda {

// Rows that these products are for: of one matrix, and of a bank.
constexpr int64_t kFewDense = 4, kFewGrouped = 32;
// Matrices that meet the same rows in one launch.
constexpr int kMostFew = 4;

struct FewMatrix {
  Tensor w;  // [E,O,I] f32, bf16, q8_0 or q4_0
  Tensor y;  // [R,O] f32 or bf16
};
// What becomes of the first two products, gate and up, or of the only one (ffn_act_forward()).
struct FewHidden {
  Tensor y;       // [R,O] of the products' dtype
  Tensor weight;  // [R] or empty
  Act act;
};
// How few rows meet their matrices.
struct FewRows {
  std::span<const FewMatrix> matrices;  // of one dtype
  GatheredRows x;                       // [R,I]; without a list row[r] = r
  Groups groups;
  bool add = false;
  std::optional<FewHidden> hidden = {};
  // Whether the matrices were there before the last launch, so that they may be read ahead of it.
  bool settled = true;
};

// Rows of quantised matrices that fit this are not made wide.
bool few_rows_read(DType format, int64_t in);
// y[r,o] = (y[r,o] +) sum_i x[row[r],i] w[e(r)][o,i]. Rows that meet quantised weights become bytes
// first, with a scale for each 16 numbers. False where rows are many, or lie so that steps do not
// fit them, and nothing was done.
bool few_rows_product(Run&, const FewRows&);

}  // namespace moe::ops::cuda
