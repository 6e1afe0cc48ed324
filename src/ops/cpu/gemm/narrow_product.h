// Products in f32 with matrices of few columns, as a router's: the weights are read where they lie.
#pragma once

#include "core/threads.h"
#include "ops/ops.h"

namespace moe::ops {

// The most columns for which this pays: oneDNN's blocks are of 64, and a row alone would read every
// line of one for a few numbers of it.
constexpr int64_t kMostNarrowColumns = 32;

// y[r,o] = sum_i x[r,i] w[o,i] for r in `rows`; every sum is made in the same order whatever stands
// beside it. y [R,O] f32; x [R,I] f32 or bf16; w [O,I] f32, bf16 or f16
void narrow_multiply(Tensor y, const GatheredRows& x, Tensor w, Span rows);

}  // namespace moe::ops
