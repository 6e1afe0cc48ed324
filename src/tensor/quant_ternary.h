// The formats whose numbers are -d, 0 and d, for quant.cpp and the panels of products: TQ1_0 and
// TQ2_0, and Q1_0, which has no 0 (github ggml-org/ggml, src/ggml-common.h). They are read as Q2_0
// is, x = d (q - 1).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace moe {

constexpr bool is_ternary(DType dtype) {
  return dtype == DType::tq1_0 || dtype == DType::tq2_0 || dtype == DType::q1_0;
}

// Run r of 32 numbers of a block: q, 0 to 2, of TQ2_0 to 3.
struct TernaryRun {
  uint8_t q[32];
};
TernaryRun read_ternary_run(DType dtype, const uint8_t* block, int r);
// The bits of the half d.
uint16_t ternary_scale(DType dtype, const uint8_t* block);

void read_ternary(float* out, DType dtype, const uint8_t* block);

}  // namespace moe
