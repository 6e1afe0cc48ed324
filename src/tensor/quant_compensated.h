// Quantising a matrix whose inputs are known: what one column loses by rounding, the columns after
// it make good (Frantar et al., "GPTQ", arXiv 2210.17323).
//
// The rows of x that the matrix multiplies have the products H = sum x x^T. Rounding a row w to v
// costs (w - v) H (w - v)^T. Columns are rounded from left to right; when column j is off by
// e = w_j - v_j, what costs least is to move every later column k by -e shares[j,k], where
//   shares[j,k] = U[j,k] / U[j,j],  H^-1 = U^T U,  U upper triangular.
// The scales of a block are chosen when its turn comes, for the numbers as they are by then.
#pragma once

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace moe {

// rows [n,I] f32, which change; out: their blocks, one row after another. importance [I] as for
// quantise(); shares [I,I] f32, of which only what is right of the diagonal is read. The bits of a
// row do not depend on the others.
void quantise_compensated(char* out, Tensor rows, DType to, const float* importance, Tensor shares);

}  // namespace moe
