// What the kernels of a short convolution are given, the same for all instruction sets.
#pragma once

#include <cstdint>

namespace moe::ops {

struct ConvWeight {
  const float* by_tap;  // [J,C]
  const float* bias;    // [C] or null
  int64_t taps;         // J
};

}  // namespace moe::ops
