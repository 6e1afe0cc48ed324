// Products of several banks at the same moment, as a layer's routed and shared experts have them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace moe::ops {

// What becomes of the products of (gate, up), or of up alone: ffn_act_forward() of them.
struct BankHidden {
  Tensor y;       // [R,F] A
  Tensor weight;  // [R] or empty
  Act act;
};
// The rows of one bank and the matrices they meet.
struct BankOperands {
  std::vector<Operand> operands;
  GatheredRows x;                    // [R,I] A
  std::span<const int64_t> offsets;  // [E+1]
  std::optional<BankHidden> hidden = {};
};
// matmul_forward() of each, to the bit. Where rows are few, as when a text is written token by
// token, and where all weights are quantised, those of all banks stream through in one parallel
// region. On a GPU few rows of a bank meet all its matrices in one launch, its activations too.
void matmul_forward_banks(Run&, std::span<const BankOperands> banks);

}  // namespace moe::ops
