// The law of rows as the machine keeps it: in bits where its products do, else to a tolerance that
// an error of routing or order far exceeds.
#pragma once

#include <cmath>
#include <cstring>
#include <span>

#include "ops/ops.h"

namespace moe::test {

// Norm-wise, for logits after a few layers. Between products in bf16 one rounding more or less is
// 2^-8 of a value.
constexpr double kRowsF32 = 1e-4, kRowsBf16 = 2e-2;

inline bool same_rows(std::span<const float> a, std::span<const float> b,
                      DType dtype = DType::f32) {
  if (a.size() != b.size()) return false;
  if (ops::products_keep_row_bits(dtype))
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference) <= (dtype == DType::bf16 ? kRowsBf16 : kRowsF32) * std::sqrt(size);
}

}  // namespace moe::test
