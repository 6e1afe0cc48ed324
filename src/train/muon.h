// Muon: a matrix moves by its momentum, orthogonalised (Jordan et al., "Muon", 2024), scaled so
// that AdamW's learning rate and decay fit it too (Liu et al., "Muon is Scalable for LLM Training",
// arXiv 2502.16982).
//   m = mu m + g;  u = g + mu m;  value = (1 - lr wd) value - lr 0.2 sqrt(max(O, I)) NS(u)
// NS is five steps of X = a X + b (X X^T) X + c (X X^T)^2 X with (a, b, c) = (3.4445, -4.7750,
// 2.0315) from X = u / (|u| + 1e-7): it brings all singular values near 1. Here is NS and who takes
// it; momentum and decay are the Optimizer's.
#pragma once

#include "ops/ops.h"
#include "train/options.h"

namespace moe {

// The hidden matrices of the model do (model/parameters.h). Embeddings and the head are tables,
// whose rows have a length that means something; a router's few rows compete for tokens, and to
// orthogonalise them would move those of unused experts as far as the others; norms and biases are
// no matrices. Of an adapter the product of its halves is the matrix, not they.
bool takes_muon(const Param&, const TrainOptions&);

// NS of each [O,I] and of each matrix of each [E,O,I], in place; f32, dense (ops::newton_schulz).
void orthogonalise(Run&, ops::List<Tensor> all);

// 0.2 sqrt(max(O, I)): beside AdamW's, whose numbers are about 0.2 to 0.4 large on average.
float muon_scale(int64_t rows, int64_t cols);

}  // namespace moe
