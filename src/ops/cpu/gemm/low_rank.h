// The part of a product that a matrix's low-rank term has (tensor/param.h): through the r numbers
// that it makes of a row, so that b a is never made. For matmul.cpp and matmul_dw.cpp, whose
// groups these are.
#pragma once

#include "ops/cpu/gemm/products.h"

namespace moe::ops {

struct TermTo {
  bool add;   // to what stands in y
  bool wide;  // in f32 whatever x is
};
// y = or += s (x a^T) b^T.  y [R,O]; x [R,I]
void term_forward(Run&, Tensor y, GatheredRows x, const LowRankTerm&, Offsets, TermTo);
// dx = or += s (dy b) a.  dx [R,I]; dy [R,O]
void term_backward(Run&, Tensor dx, GatheredRows dy, const LowRankTerm&, Offsets, bool add);
// db += dy^T (s x a^T), da += (s dy b)^T x, of those of the two that have a gradient.
void term_dw(Run&, const LowRankTerm&, GatheredRows dy, GatheredRows x, Offsets);

}  // namespace moe::ops
